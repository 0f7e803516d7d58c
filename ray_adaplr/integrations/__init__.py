"""Doors to other people's tools: each optional, one file, imported when it is used."""
