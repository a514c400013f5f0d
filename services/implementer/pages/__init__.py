"""The dashboard: HTML pages over the same bodies that the API answers with.

`app.create_app` calls `install`. A page calls the router or view that makes the API's body and
renders it with a template; it asks nothing of the database that they do not ask. Pages work
without JavaScript; `static/` adds charts, live updates and following of logs.
"""

from services.implementer.pages.install import install

__all__ = ["install"]
