"""Hides the package from programs with this directory on their path, as if not installed.

jsonschema asks it whether a text is an IRI, which nobody does here: at its import it builds 38
parsers, in a second of each process, and more than the rest of a Jupyter server's start takes.
"""

raise ImportError("left out of the tests' processes")
