"""Not there for those who have this folder on their path, as where the package isn't installed.

jsonschema asks it whether a text is an IRI, which nobody does here: at its import it builds 38
parsers, in a second of each process, and more than the rest of a Jupyter server's start takes.
"""

raise ImportError("left out of the tests' processes")
