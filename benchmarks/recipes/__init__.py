"""What does each recipe reach, how long does it take, and does a second machine change what it learns."""
