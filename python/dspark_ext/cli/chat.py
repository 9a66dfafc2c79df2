"""Talk with the model; answers stream, accepted drafts in green.

Commands: /help, /reset, /stats, /plain, /set NAME VALUE, /quit.
"""

import dataclasses

from . import models, prompts, sampling
from .errors import UserError, one_line

HELP = """\
/reset            forget the conversation
/stats            what the last answer and the whole conversation took
/plain            plain decoding, without drafts, from now on; again: back
/set NAME VALUE   temperature, top_k, top_p, min_p, seed, max_new_tokens, presence_penalty,
                  frequency_penalty or repetition_penalty
/quit             end (as does end of input)"""


def add_arguments(parser) -> None:
    sampling.add_arguments(parser, temperature=0.2, top_p=0.9, max_new_tokens=256)
    models.add_arguments(parser, max_requests=1)
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")


def run(options) -> int:
    from .screen import consoles

    sampling.check(options)
    prompts.check_text("--system", options.system)
    out, log = consoles()
    served = models.load_with_status(options)
    if served.chat is None:
        raise UserError("--target: it has no chat template; use `dspark-ext generate --raw`")
    log.print(f"{served.name}, drafter {served.facts['drafter']}. /help lists the commands.")
    conversation = Conversation(served, options, out, log)
    while True:
        try:
            line = input("> " if log.is_terminal else "").strip()
        except EOFError:
            return 0
        if line == "/quit":
            return 0
        try:
            conversation.take(line)
        except UserError as error:
            log.print(str(error), style="red", markup=False)
        except KeyboardInterrupt:
            log.print("(stopped)")


class Conversation:
    """Messages so far, and what they took."""

    def __init__(self, served, options, out, log) -> None:
        self._served, self._options = served, options
        self._out, self._log = out, log
        self._plain = served.engine.drafter is None
        self._last = None
        self.messages: list[dict[str, str]] = []
        self._passes = self._tokens = 0
        self._seconds = 0.0
        self._reset()

    def take(self, line: str) -> None:
        """Run a command or answer."""
        word, _, rest = line.partition(" ")
        commands = {
            "/help": lambda: self._log.print(HELP, markup=False),
            "/reset": self._reset,
            "/stats": self._show_stats,
            "/plain": self._switch,
            "/set": lambda: self._set(rest),
        }
        if word in commands:
            commands[word]()
        elif word.startswith("/"):
            raise UserError(f"{word}: unknown command; there are {', '.join(commands)}, /quit")
        elif line:
            self._answer(line)

    def _reset(self) -> None:
        system = self._options.system
        self.messages = [{"role": "system", "content": system}] if system else []

    def _switch(self) -> None:
        if self._served.engine.drafter is None:
            raise UserError("/plain: there is no drafter, decoding is plain already")
        self._plain = not self._plain
        self._log.print("plain decoding" if self._plain else "with drafts")

    def _set(self, rest: str) -> None:
        name, _, text = rest.strip().partition(" ")
        if name not in sampling.FIELDS:
            raise UserError(f"/set: {name!r}: expected one of {', '.join(sampling.FIELDS)}")
        try:
            value = sampling.FIELDS[name][0](text)
        except ValueError as error:
            raise UserError(f"/set {name}: {one_line(error)}") from error
        before = getattr(self._options, name)
        setattr(self._options, name, value)
        try:
            sampling.check(self._options)
        except UserError:
            setattr(self._options, name, before)
            raise

    def _answer(self, text: str) -> None:
        from .screen import write

        prompts.check_text("message", text)
        self.messages.append({"role": "user", "content": text})
        try:
            prompt = self._prompt()
        except UserError:  # it was not asked
            self.messages.pop()
            raise
        params = sampling.read(self._options, self._served)
        stream = self._served.engine.stream([prompt], [params], speculative=not self._plain)
        pieces = []
        try:
            for event in stream:
                pieces.append(event.text)
                write(self._out, event.text, "green" if any(event.accepted) else "")
        finally:
            stream.close()
            self._out.print()
            self.messages.append({"role": "assistant", "content": "".join(pieces)})
            self._last = dataclasses.replace(stream.stats)
            self._passes += stream.stats.passes
            self._tokens += stream.stats.emitted
            self._seconds += stream.stats.seconds

    def _prompt(self) -> list[int]:
        """Token ids of the conversation; the oldest exchanges are dropped where it fills more than
        the context leaves beside an answer."""
        engine, dropped = self._served.engine, 0
        most = engine.target.max_len - min(self._options.max_new_tokens, engine.target.max_len // 2)
        while True:
            try:
                text = self._served.chat(self.messages)
            except ValueError as error:
                raise UserError(one_line(error)) from error
            token_ids = self._served.tokenizer.encode(text)
            first = int(self.messages[0]["role"] == "system")
            if len(token_ids) <= most:
                break
            if len(self.messages) - first < 3:
                raise UserError(
                    f"the message has {len(token_ids)} tokens, there is room for {most}"
                )
            del self.messages[first : first + 2]
            dropped += 2
        if dropped:
            self._log.print(f"(the context is full: the oldest {dropped} messages were dropped)")
        return token_ids

    def _show_stats(self) -> None:
        if self._last is None:
            raise UserError("/stats: nothing was answered yet")
        stats, report = self._last, self._last.acceptance
        line = f"last: {stats.emitted} tokens, {stats.tokens_per_second:.1f}/s, "
        line += f"{stats.tokens_per_pass:.2f} a target pass"
        if report is not None and report.drafted:
            line += f", {report.acceptance_rate:.0%} of {report.drafted} drafts accepted"
        self._log.print(line)
        self._log.print(
            f"in all: {self._tokens} tokens, {self._tokens / self._seconds:.1f}/s, "
            f"{self._tokens / self._passes:.2f} a target pass"
        )
