"""Language models behind HTTP servers: the client, and the roles that models or programs play."""
