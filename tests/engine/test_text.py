"""Text out of tokens, for any split of tokens into passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_ext.engine.text import TextStream

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30) | st.text("ab€😀\n", max_size=30)


def decode_bytes(token_ids):
    return bytes(token_ids).decode(errors="replace")


def decode_runs(token_ids):
    """As tokenizers with byte tokens do (Llama 2, Mistral, Gemma): bytes that are no text together
    are U+FFFD each, those of whole characters before an unfinished one included."""
    text = decode_bytes(token_ids)
    return text if "\ufffd" not in text else "\ufffd" * len(token_ids)


def push_all(stream, tokens, sizes):
    """Push in pieces; returns the pieces of text and how many tokens were taken."""
    pieces, at = [], 0
    for size in [*sizes, len(tokens)]:
        chunk = tokens[at : at + size]
        text, taken = stream.push(chunk)
        pieces.append(text)
        at += taken
        if stream.stopped:
            break
    pieces.append(stream.finish())
    return pieces, at


@given(TEXTS, st.lists(st.integers(0, 5), max_size=40))
def test_characters_are_whole(text, sizes):
    for decode in (decode_bytes, decode_runs):
        stream = TextStream(decode)
        pieces, _ = push_all(stream, list(text.encode()), sizes)
        assert "".join(pieces) == stream.text == text
        assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


@given(st.binary(max_size=30), st.lists(st.integers(0, 4), max_size=30))
def test_bytes_that_are_no_text(data, sizes):
    stream = TextStream(decode_bytes)
    pieces, _ = push_all(stream, list(data), sizes)
    assert "".join(pieces) == data.decode(errors="replace")


@given(
    TEXTS,
    st.lists(st.text("ab€😀\n", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 5), max_size=40),
)
def test_text_ends_before_the_first_stop_string(text, stops, sizes):
    stream = TextStream(decode_bytes, stops)
    tokens = list(text.encode())
    pieces, taken = push_all(stream, tokens, sizes)
    # the token that completes a stop string first, and what stands before the earliest then
    for count in range(len(tokens) + 1):
        seen = tokens[:count]
        whole = bytes(seen).decode(errors="ignore")
        found = [whole.find(stop) for stop in stops if stop in whole]
        if found:
            assert stream.stopped and taken == count
            assert "".join(pieces) == stream.text == whole[: min(found)]
            return
    assert not stream.stopped and "".join(pieces) == text


def test_what_may_begin_a_stop_string_is_held_back():
    stream = TextStream(decode_bytes, ("<end>", "d\n"))
    assert stream.push(list(b"a <e")) == ("a ", 4)
    assert stream.push(list(b"nd")) == ("", 2)
    assert stream.push(list(b"!")) == ("<end!", 1)
    assert stream.push(list(b"<en")) == ("", 3)
    assert stream.finish() == "<en"


class WordPieces:
    """Decodes as sentence pieces do: the first word of a text loses its space."""

    words = ("▁the", "▁cat", "s", "▁", "<0xE2>", "<0x82>", "<0xAC>")

    def decode(self, token_ids):
        data = b"".join(self._bytes(self.words[each]) for each in token_ids)
        return data.decode(errors="replace").removeprefix(" ")

    @staticmethod
    def _bytes(word):
        return bytes([int(word[3:5], 16)]) if word[0] == "<" else word.replace("▁", " ").encode()


@given(st.lists(st.integers(0, 6), max_size=20), st.lists(st.integers(0, 3), max_size=30))
def test_spaces_between_passes(tokens, sizes):
    pieces = WordPieces()
    stream = TextStream(pieces.decode)
    texts, _ = push_all(stream, tokens, sizes)
    assert "".join(texts) == pieces.decode(tokens)


def test_bytes_of_a_tokenizer_with_byte_tokens():
    tokenizers = pytest.importorskip("tokenizers")
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    for text in ("€", "a€€a", "😀😀"):
        token_ids = [byte + 1 for byte in text.encode()]
        for size in (1, 2, 3, 5):
            stream = TextStream(lambda ids: tokenizer.decode(list(ids)))
            pieces, _ = push_all(stream, token_ids, [size] * 8)
            assert "".join(pieces) == text and "\ufffd" not in "".join(pieces[:-1])


@given(
    st.lists(st.integers(0, 6), max_size=12),
    st.lists(st.integers(0, 6), max_size=12),
    st.lists(st.integers(0, 3), max_size=12),
)
def test_the_text_goes_on_from_its_context(context, tokens, sizes):
    """The first space of an answer is its own: only that of a whole text is dropped."""
    pieces = WordPieces()
    stream = TextStream(pieces.decode, context=context)
    texts, _ = push_all(stream, tokens, sizes)
    before = pieces.decode(context).rstrip("\ufffd")
    if tokens and context:
        assert before + "".join(texts) == pieces.decode(context + tokens)


@pytest.mark.parametrize("length", [50, 500])
def test_a_push_decodes_few_tokens(length):
    decoded = []

    def decode(token_ids):
        decoded.append(len(token_ids))
        return decode_bytes(token_ids)

    stream = TextStream(decode)
    for token in b"x" * length:
        stream.push([token])
    assert max(decoded) <= 3
