"""What begins a prompt: a BOS token where the tokenizer has one for texts, once."""

import pytest

from dspark_ext.cli.tokenizer import Tokenizer

BOS, END = 256, 257


@pytest.fixture
def with_bos(make_model_directory):
    """Byte tokens, and as Llama has them: BOS before every text, an end token."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(make_model_directory())
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    return tokenizer


def test_texts_begin_with_it_and_templates_do_not(with_bos):
    tokenizer = Tokenizer(with_bos)
    assert tokenizer.encode_text("ab") == [BOS, 97, 98] and tokenizer.encode("ab") == [97, 98]
    assert tokenizer.encode_text("") == [BOS]
    assert tokenizer.encode_text("<s>ab") == [BOS, 97, 98]  # the user's own is enough
    assert tokenizer.stop_ids == (END,) and tokenizer.decode([BOS, 97, END]) == "a"


def test_a_tokenizer_without_adds_nothing(model_directory):
    from transformers import AutoTokenizer

    tokenizer = Tokenizer(AutoTokenizer.from_pretrained(model_directory))
    assert tokenizer.encode_text("ab") == [97, 98] and tokenizer.encode_text("") == []
