"""Needs of reports beyond a Spark session, over Spark Connect too: threads, places, and words for its errors."""
