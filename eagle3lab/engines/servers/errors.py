"""What can go wrong between the lab and a server, told apart by what helps: try again, or change the row."""

from eagle3lab.engines.base import ContextError


class ServerError(RuntimeError):
    """A request that a server did not answer. `url` is the server, `row_id` the request ("" for none)."""

    def __init__(self, message: str, url: str = "", row_id: str = ""):
        super().__init__(message)
        self.url, self.row_id = url, row_id


class ServerGone(ServerError):
    """No connection, or lost, or no answer in time; all attempts used up."""


class ServerFault(ServerError):
    """The server answered with its own failure (5xx, an aborted request); all attempts used up."""


class BadAnswer(ServerError):
    """An answer that is not what `/generate` gives: another service, or a release this client does not know."""


class RequestRefused(ServerError, ValueError):
    """The server will not run this request (4xx): trying again does not help. Holds the server's own words."""


class ContextRefused(RequestRefused, ContextError):
    """The row does not fit into the context or the cache that the server was started with."""
