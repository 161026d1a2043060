"""One folder per recipe, each with the same files: README.md, config.py, train.py, main.py; and convert/."""
