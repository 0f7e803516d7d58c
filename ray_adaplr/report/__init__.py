"""Everything a person looks at: the HTML report, figures, the terminal view and TensorBoard."""
