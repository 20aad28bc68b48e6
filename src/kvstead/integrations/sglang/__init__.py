"""SGLang on kvstead's allocators: its classes, its signatures, none of its faults."""
