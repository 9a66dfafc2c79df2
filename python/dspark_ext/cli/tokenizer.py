"""A Hugging Face tokenizer as the commands use it: raw text in and out, chat prompts, ends."""

from __future__ import annotations

from collections.abc import Sequence


class Tokenizer:
    """Text to tokens and back. No white space is cleaned up; special tokens, such as those that end
    an answer, have no text.

    tokenizer   of transformers
    end_tokens  names of tokens that end an answer, beside the tokenizer's own
    end_ids     the same by id; None entries are ignored
    """

    def __init__(self, tokenizer, end_tokens: Sequence[str] = (), end_ids: Sequence = ()) -> None:
        self.transformers = self._tokenizer = tokenizer
        found = [tokenizer.convert_tokens_to_ids(name) for name in end_tokens]
        ids = {*found, *end_ids, tokenizer.eos_token_id} - {None}
        self.stop_ids = tuple(sorted(ids))
        begin = [tokenizer.bos_token_id]
        self._begin = begin if tokenizer("")["input_ids"][:1] == begin else []
        self.chat = self._chat_prompt if getattr(tokenizer, "chat_template", None) else None

    def encode_text(self, text: str) -> list[int]:
        """A text of its own: behind the BOS token, where the tokenizer puts one."""
        token_ids = self.encode(text)
        return token_ids if token_ids[:1] == self._begin else self._begin + token_ids

    def encode(self, text: str) -> list[int]:
        """A text as it is, such as a chat template's: nothing is added."""
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _chat_prompt(self, messages: Sequence[dict]) -> str:
        """The prompt of a conversation, open for the assistant's answer. Messages are mappings of
        role and content. Raises ValueError for what the template refuses."""
        import jinja2

        try:
            return self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            raise ValueError(f"the chat template refuses the messages: {error}") from error
