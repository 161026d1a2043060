"""How much of a link's rate collectives use, by TCP's congestion control."""
