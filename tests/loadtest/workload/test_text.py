from hypothesis import given
from hypothesis import strategies as st

from loadtest.workload.text import Text, chain, extend

pieces = st.tuples(st.integers(0, 3), st.integers(0, 9))
texts = st.lists(pieces, max_size=8).map(Text.of)
block_sizes = st.integers(1, 5)


def tokens_of(text):
    """The naive model: a token is its text's id and its place in it."""
    return [(id_, place) for id_, tokens in text.pieces for place in range(tokens)]


def blocks_of(text, block_tokens):
    tokens = tokens_of(text)
    return [tuple(tokens[end - block_tokens : end]) for end in range(block_tokens, len(tokens) + 1, block_tokens)]


def common(first, second):
    length = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        length += 1
    return length


@given(texts, texts, block_sizes)
def test_chains_agree_as_far_as_the_tokens_do(first, second, block_tokens):
    links, others = chain(first, block_tokens), chain(second, block_tokens)
    assert len(links) == first.tokens // block_tokens
    assert common(links, others) == common(blocks_of(first, block_tokens), blocks_of(second, block_tokens))


@given(texts, st.lists(pieces, max_size=4), block_sizes)
def test_a_longer_text_extends_the_chain(text, further, block_tokens):
    longer = text.plus(*further)
    assert longer == Text.of(text.pieces + tuple(further))
    assert len(tokens_of(longer)) == longer.tokens
    links = chain(text, block_tokens)
    assert extend(links, longer, block_tokens) == chain(longer, block_tokens)
    assert chain(longer, block_tokens)[: len(links)] == links


@given(texts, st.integers(0, 30))
def test_the_first_tokens_are_the_first_tokens(text, tokens):
    begun = text.first(tokens)
    assert tokens_of(begun) == tokens_of(text)[:tokens] and len(tokens_of(begun)) == begun.tokens


def test_extending_leaves_what_was_given_alone():
    links = chain(Text.of([(1, 32)]), 16)
    kept = list(links)
    assert extend(links, Text.of([(1, 32), (2, 16)]), 16)[:2] == links == kept


def test_a_link_is_a_64_bit_number_and_depends_on_all_before_it():
    big = 2**63 - 1
    links = chain(Text.of([(big, 48)]), 16)
    assert len(set(links)) == 3 and all(0 <= link < 2**64 for link in links)
    assert chain(Text.of([(5, 16), (7, 16)]), 16)[1] != chain(Text.of([(6, 16), (7, 16)]), 16)[1]


def test_chains_are_the_same_on_every_machine():
    assert chain(Text.of([(1, 512), (2, 100), (3, 412)]), 512) == KNOWN


KNOWN = [13354697799551100489, 10542734008256701655]
