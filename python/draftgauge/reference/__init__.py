"""The slow twin: what the engine computes, again, in plain NumPy, for the tests to compare and for readers to check.

Nothing here imports the compiled extension.
"""
