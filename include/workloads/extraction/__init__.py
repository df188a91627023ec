"""Metadata extraction: a model fills a corpus's own fields for each document or chunk, in bulk."""
