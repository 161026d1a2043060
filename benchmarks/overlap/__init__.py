"""How much of the communication DeAR hides, against what hides less."""
