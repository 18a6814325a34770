"""What an answer goes through on its way out: choices and stages, sanitising of links and markup, charts."""
