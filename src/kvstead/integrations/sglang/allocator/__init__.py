"""SGLang's allocators, one module a kind, under the names of its own modules."""
