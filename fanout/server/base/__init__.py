"""What every part of the server uses: its ports to the node, counters, deadlines, fair turns."""
