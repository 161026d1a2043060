"""The native part of the sample cache: a store of samples in shared memory, files read through copies."""
