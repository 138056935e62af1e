"""Words that captions and alt texts make of numbers."""


def span(values, shown="{:.3g}"):
    """Say from where to where numbers go, such as "0.8 to 1.2"; where both ends read alike, one of them."""
    low, high = shown.format(values.min()), shown.format(values.max())
    return low if low == high else f"{low} to {high}"


def points(share):
    """Put a difference of shares into words, in percentage points, such as "+1.2"."""
    return f"{100 * share:+.1f}".replace("-", "−")


def listed(words):
    """Put words in a row, such as "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
