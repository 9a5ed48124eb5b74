"""An oracle for what leaves a node: a strict reader of MQTT that shares nothing with the product's codec."""
