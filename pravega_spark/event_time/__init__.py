"""Event time: what users note and read, and the commits of watermarks.

The rule by which a watermark follows from the notes of writers is ``engine/stream/watermarks.py``.
"""
