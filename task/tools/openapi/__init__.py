"""Operations of HTTP APIs as tools, as OpenAPI documents describe them."""
