"""What every process of fanout needs from the machine: the clock, logging, garbage collection, delays of retries."""
