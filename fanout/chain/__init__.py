"""What fanout nodes tell each other beside the messages: stamps, manifests and readiness. Core: no I/O."""
