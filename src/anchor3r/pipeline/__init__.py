"""What the command line, the Python interface, evaluation and the demo all call."""
