"""Oracles for replays: a linear cost, and reuse counted without a tree."""


class LinearCost:
    """A sum of constants for the step, each computed token, token read and attended pair (in windows too), and state.

    Sums are exact.
    """

    def __init__(self, step=1.0, token=0.25, read=0.125, pair=0.125, window_read=0.5, window_pair=0.0625, state=2.0):
        self.step, self.token, self.read, self.pair = step, token, read, pair
        self.window_read, self.window_pair, self.state = window_read, window_pair, state

    def seconds(self, num_tokens, kv_tokens_read, attention_pairs, window_tokens_read=0, window_pairs=0, num_states=0):
        """A sum."""
        full = self.step + self.token * num_tokens + self.read * kv_tokens_read + self.pair * attention_pairs
        window = self.window_read * window_tokens_read + self.window_pair * window_pairs
        return full + window + self.state * num_states


def reused_tokens(trace, page_size):
    """Tokens that an unlimited cache finds when requests come one by one: whole pages, but not the last token.

    Counted on the prompts alone: no generated token is ever matched, since its id is of a range of its own.
    """
    seen = set()
    hits = 0
    for request in range(len(trace)):
        prompt = tuple(trace.prompt_tokens(request).tolist())
        stops = range(page_size, len(prompt) + 1, page_size)
        found = 0
        for stop in stops:
            if stop == len(prompt) or prompt[:stop] not in seen:
                break
            found = stop
        hits += found
        seen.update(prompt[:stop] for stop in stops)
    return hits
