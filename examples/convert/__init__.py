"""The scripts of docs/convert_your_script.md: before, and after."""
