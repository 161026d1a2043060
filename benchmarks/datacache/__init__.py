"""How long is an epoch of reading and decoding, with each way to keep what has been read?"""
