"""What lies on disk or in a bucket: folders with atomic writes, models, and the one schema of a run's folder."""
