"""``pravega-spark serve``: a page, Pravega's REST API, and more of our own, for one root.

Needs the extra ``serve`` (FastAPI and uvicorn), and neither Spark nor a JVM.
"""
