"""Other people's conformance suites, run against a node: `python -m tests.conformance`, see docs/conformance.md.

The suites are not part of this project. What is here starts the node in place of the suite's own broker, and reads what
a Server may choose (properties of CONNACK) as a choice. Nothing here uses fanout's own codec.
"""
