"""One module a paper, each with one `STUDY`; the file's name is the study's, with hyphens for underscores."""
