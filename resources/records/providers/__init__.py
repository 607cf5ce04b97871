"""Turns logged calls of providers' APIs, tracing tools and proxies into OpenAI chats."""
