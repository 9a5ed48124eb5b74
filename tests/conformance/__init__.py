"""Other people's conformance suites, run against a node (docs/reference/conformance.md): `python -m tests.conformance`.

The suites are not part of this project. What is here starts the node in place of the suite's own broker, and reads what
a Server may choose (properties of CONNACK) as a choice. Nothing here uses fanout's own codec.
"""
