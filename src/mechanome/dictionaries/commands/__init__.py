"""What `mechanome fit`, `eval` and `features` do, each with its run folder."""
