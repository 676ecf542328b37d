"""Types of the compiled half; `make lint` compares them with the module itself."""
