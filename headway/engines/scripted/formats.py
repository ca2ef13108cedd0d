"""vLLM's wire formats for the scripted engine: reads requests, writes answers and errors.

Knows the fields of the request bodies, the bytes of every event and the text of every answer. Does not know
sockets, clocks or seats: everything here is a function of its arguments.
Invariant: token n of every answer is `WORDS[(n - 1) % len(WORDS)]`, and each event is one HTTP chunk. An answer whose
prompt ends with the ids of such words goes on after the last of them.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

FINGERPRINT = "vllm-0.32.0-scripted"
DEFAULT_MAX_TOKENS = 16
TEMPLATE_TOKENS, IMAGE_TOKENS = 4, 64  # what a chat template adds to the prompt, and what an image is
SERVICE_TIERS = ("auto", "default", "flex", "scale", "priority")
BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."

# Each word is used once, because some clients stop at repetitions. Plain ASCII, so that JSON needs no escapes.
_STORY = """
the morning train left town before anyone could find a second ticket and went slowly over seven bridges toward
northern hills where rain had washed every road clean while farmers watched from their doors as children counted
yellow wagons behind an old engine that carried wood salt paper glass copper tools some letters two clocks one small
piano several boxes of oranges for winter market day in harbour city whose streets are narrow but bright with lamps
people there speak quietly about weather prices ships news music bread family work they like good stories long
evenings warm kitchens open windows fresh coffee short walks by water under tall trees near stone walls at dusk
when birds return home across fields full or barley clover thyme then night comes down softly like dark blue cloth
stars appear first few many countless above silent roofs only river keeps moving past mills gardens schools
churches farms toward wide sea which never sleeps nor tires it takes all rivers gives back clouds wind tide foam
sand shells driftwood amber sometimes bottles holding messages written far away years ago nobody answers yet
someone always reads them aloud smiling because hope travels well even slow boats reach land eventually so sit rest
look listen wait until dawn
"""
WORDS = tuple(" " + word for word in dict.fromkeys(_STORY.split()))
_WORD_BYTES = tuple(word.encode() for word in WORDS)
FIRST_WORD_ID = 1000  # the token id of the first word; the ids of prompts are lower


class ScriptedStreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class ScriptedMessage(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None


class Ask(msgspec.Struct):
    """The fields that this engine reads in any dialect. Like vLLM it ignores all others."""

    model: str | None = None
    messages: list[ScriptedMessage] = []
    system: str | list[dict[str, Any]] | None = None
    prompt: str | list[Any] = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    stream_options: ScriptedStreamOptions | None = None
    service_tier: str | None = None
    return_token_ids: bool | None = False
    input: str | list[dict[str, Any]] | None = None  # this and the next two: of /v1/responses
    instructions: str | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """What is known about an answer before its first token."""

    id: str
    request_id: str
    created: int
    model: str
    prompt_tokens: int
    total_tokens: int
    stop: str | None  # the stop string that ends it; None if it ends at its length limit
    include_usage: bool = False
    continuous_usage: bool = False
    choices: int = 1  # all alike; `total_tokens` is of each
    words_before: int = 0  # words of an answer at the end of the prompt: this one goes on with it
    returns_ids: bool = False
    body: bytes = b""  # of the request, parts of which a response repeats

    def text(self) -> str:
        words = self.total_tokens if self.stop is None else self.total_tokens - 1
        return "".join(WORDS[(self.words_before + number) % len(WORDS)] for number in range(words))

    def word_number(self, number: int) -> int:
        """The place of the answer's n-th token in WORDS."""
        return (self.words_before + number - 1) % len(WORDS)

    @property
    def prompt_ids(self) -> bytes:
        """As JSON. What they are does not matter."""
        return msgspec.json.encode([number % FIRST_WORD_ID for number in range(self.prompt_tokens)])


class WireError(Exception):
    """An error response in vLLM's wording."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.param = status, kind, message, param

    def openai(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})

    def anthropic(self) -> bytes:
        return msgspec.json.encode({"type": "error", "error": {"type": self.kind, "message": self.message}})


_ASK = msgspec.json.Decoder(Ask)


def read_ask(body: bytes, model: str) -> Ask:
    try:
        ask = _ASK.decode(body)
    except msgspec.DecodeError as error:  # includes wrong types
        raise WireError(400, "Bad Request", f"1 validation error:\n  {error}", "body") from None
    if ask.model is not None and ask.model != model:
        message = f"The model `{ask.model}` does not exist. Valid aliases: {model}."
        raise WireError(404, "NotFoundError", message, "model")
    return ask


def count_prompt_tokens(ask: Ask) -> int:
    if ask.prompt and not isinstance(ask.prompt, str) and isinstance(ask.prompt[0], int):
        return len(ask.prompt)
    items = [] if isinstance(ask.input, str) else ask.input or []
    contents = [ask.system, ask.instructions, *(message.content for message in ask.messages)]
    contents += [item.get(name) for item in items for name in ("content", "output", "arguments")]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    results = [part for one in parts if isinstance(one.get("content"), list) for part in one["content"]]
    images = sum(part.get("type") in ("image_url", "image", "input_image") for part in parts + results)
    texts = [ask.input, *contents, *(part.get("text") for part in parts)]
    texts += [ask.prompt] if isinstance(ask.prompt, str) else ask.prompt
    return TEMPLATE_TOKENS + IMAGE_TOKENS * images + sum(len(text.split()) for text in texts if isinstance(text, str))


def check_limits(ask: Ask, prompt_tokens: int, max_model_len: int) -> int:
    """Returns the number of tokens to generate. Raises WireError if it is out of range, as vLLM does."""
    name = "max_tokens" if ask.max_completion_tokens is None else "max_completion_tokens"
    asked = ask.max_tokens if ask.max_completion_tokens is None else ask.max_completion_tokens
    if ask.input is not None:
        room = max_model_len - prompt_tokens
        if room < 1:
            message = (
                f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at "
                f"least {max_model_len + 1} input tokens, which exceeds this limit even without any output tokens. "
                f"Please reduce the length of the input prompt. (parameter=input_tokens, value={max_model_len + 1})"
            )
            raise WireError(400, "BadRequestError", message, "input_tokens")
        return min(ask.max_output_tokens or DEFAULT_MAX_TOKENS, room)
    asked = DEFAULT_MAX_TOKENS if asked is None else asked
    if asked < 1:
        message = f"{name} must be at least 1, got {asked}. (parameter={name}, value={asked})"
        raise WireError(400, "BadRequestError", message, name)
    if prompt_tokens + asked > max_model_len:
        message = (
            f"{name}={asked} with {prompt_tokens} prompt tokens cannot be greater than max_model_len={max_model_len}. "
            f"Please request fewer output tokens. (parameter={name}, value={asked})"
        )
        raise WireError(400, "BadRequestError", message, name)
    return asked


def check_service_tier(ask: Ask) -> None:
    # Stricter than vLLM outside of /v1/responses: this reveals a gateway that does not remove the tier from the body.
    if ask.service_tier is not None and ask.service_tier not in SERVICE_TIERS:
        message = f"service_tier: input should be one of {', '.join(SERVICE_TIERS)}, got {ask.service_tier!r}"
        raise WireError(400, "BadRequestError", message, "service_tier")


def list_stops(ask: Ask) -> list[str]:
    return [ask.stop] if isinstance(ask.stop, str) else [*(ask.stop or ()), *(ask.stop_sequences or ())]


def count_words_before(ask: Ask) -> int:
    """The number of words of an answer at the end of the prompt's ids."""
    last = ask.prompt[-1] if ask.prompt and not isinstance(ask.prompt, str) else 0
    return max(0, last - FIRST_WORD_ID + 1) if isinstance(last, int) else 0


def decode(ids: list[int]) -> str:
    """The text of the words among these ids."""
    return "".join(WORDS[(one - FIRST_WORD_ID) % len(WORDS)] for one in ids if one >= FIRST_WORD_ID)


def find_stop(ask: Ask, max_tokens: int) -> tuple[int, str | None]:
    """Returns the number of tokens and the stop string that ends the answer. As in vLLM, the stop word counts as a
    token although it is not sent."""
    stops = list_stops(ask)
    if stops:
        by_word, before = {stop.strip(): stop for stop in stops}, count_words_before(ask)
        for number, word in enumerate(WORDS[before : before + max_tokens], start=1):
            if word.strip() in by_word:
                return number, by_word[word.strip()]
    return max_tokens, None


def http_chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def whole_body(
    answer: ScriptedAnswer,
    object_name: str,
    choices: list[dict[str, Any]],
    tokens: int,
    prompt: dict[str, Any],
    metrics: dict[str, Any] | None,
    token_details: dict[str, int] | None = None,
) -> bytes:
    """The body of a chat completion or a completion that is not streamed."""
    prompt_tokens = answer.prompt_tokens
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + tokens, "completion_tokens": tokens}
    body = {
        "id": answer.id,
        "object": object_name.removesuffix(".chunk"),
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": {**usage, "prompt_tokens_details": None, "completion_tokens_details": token_details},
        **prompt,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": metrics,
    }
    return msgspec.json.encode(body)


class Format(Protocol):
    """Encodes one answer in one dialect."""

    def token(self, number: int) -> bytes:
        """The HTTP chunks of one token, including any events before the first."""

    def closing(self, metrics: dict[str, float | None]) -> bytes:
        """The HTTP chunks between the last token and the terminator."""

    def whole(self, metrics: dict[str, float | None]) -> bytes:
        """The body of an answer that is not streamed."""


class _OpenAIFormat:
    """What chat and completions share. Constant bytes are made once, because a stream has thousands of tokens."""

    object_name: str
    before_word: bytes  # formatted with the index of the choice
    after_word: bytes  # up to the ids of the tokens, which end a choice
    after_last_word: bytes  # formatted with the finish reason and the stop reason
    usage_end: bytes

    def __init__(self, answer: ScriptedAnswer, index: int = 0) -> None:
        self._answer = answer
        self._index = index
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            msgspec.json.encode(answer.id),
            self.object_name.encode(),
            answer.created,
            msgspec.json.encode(answer.model),
        )
        self._usage_head = b',"usage":{"prompt_tokens":%d,"total_tokens":' % answer.prompt_tokens
        self._before = self._head + self.before_word % index
        self._after_ids = b"}]" + (self._usage_head if answer.continuous_usage else b"")
        self._after = self.after_word + b"null" + self._after_ids
        self._end = self.usage_end + b"}\n\n" if answer.continuous_usage else b"}\n\n"
        self._constant_length = len(self._before) + len(self._after) + len(self._end)

    def opening(self) -> bytes:
        return b""

    def usage(self, number: int) -> bytes:
        return self._usage_head + self._counts(number) + self.usage_end if self._answer.continuous_usage else b""

    def _counts(self, number: int) -> bytes:
        if not self._answer.continuous_usage:
            return b""
        return b'%d,"completion_tokens":%d' % (self._answer.prompt_tokens + number, number)

    def token(self, number: int) -> bytes:
        word = _WORD_BYTES[self._answer.word_number(number)]
        if number == self._answer.total_tokens:
            return self._last_token(word)
        if self._answer.returns_ids:
            after = self.after_token(number) + self._ids(number) + self._after_ids
            chunk = http_chunk(b"%b%b%b%b%b" % (self._before, word, after, self._counts(number), self._end))
        else:
            counts = self._counts(number)
            length = self._constant_length + len(word) + len(counts)
            chunk = b"%x\r\n%b%b%b%b%b\r\n" % (length, self._before, word, self._after, counts, self._end)
        return chunk if number > 1 else self.opening() + chunk

    def after_token(self, number: int) -> bytes:  # noqa: ARG002 (of a completion the first differs)
        return self.after_word

    def _ids(self, number: int) -> bytes:
        answer = self._answer
        return b"[%d]" % (FIRST_WORD_ID + answer.words_before + number - 1) if answer.returns_ids else b"null"

    def _last_token(self, word: bytes) -> bytes:
        stop, number = self._answer.stop, self._answer.total_tokens
        after_word = self.after_last_word % (b"length" if stop is None else b"stop", msgspec.json.encode(stop))
        text, ids = word if stop is None else b"", self._ids(number) + b"}]"
        chunk = http_chunk(b"%b%b%b%b%b}\n\n" % (self._before, text, after_word, ids, self.usage(number)))
        return chunk if number > 1 else self.opening() + chunk

    def closing(self, metrics: dict[str, float | None]) -> bytes:
        answer, done = self._answer, http_chunk(b"data: [DONE]\n\n")
        if not answer.include_usage:
            return done
        event = b'%b]%b%d,"completion_tokens":%d},"system_fingerprint":"%b","metrics":%b}\n\n' % (
            self._head,
            self._usage_head,
            answer.prompt_tokens + answer.choices * answer.total_tokens,
            answer.choices * answer.total_tokens,
            FINGERPRINT.encode(),
            msgspec.json.encode(metrics),
        )
        return http_chunk(event) + done

    def envelope(self, choice: dict[str, Any], prompt: dict[str, Any], metrics: dict[str, float | None]) -> bytes:
        answer = self._answer
        choices = [{"index": index, **choice} for index in range(answer.choices)]
        timings = {**metrics, "speculative_decoding": None}
        return whole_body(answer, self.object_name, choices, answer.choices * answer.total_tokens, prompt, timings)

    def ending(self) -> dict[str, Any]:
        stop = self._answer.stop
        return {"finish_reason": "length" if stop is None else "stop", "stop_reason": stop, "token_ids": None}


class ChatFormat(_OpenAIFormat):
    object_name = "chat.completion.chunk"
    before_word = b'{"index":%d,"delta":{"content":"'
    after_word = b'"},"logprobs":null,"finish_reason":null,"token_ids":'
    after_last_word = b'"},"logprobs":null,"finish_reason":"%b","stop_reason":%b,"token_ids":'
    usage_end = b',"completion_tokens_details":null}'

    def opening(self) -> bytes:
        role = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        role %= self._index
        ids = self._answer.prompt_ids if self._answer.returns_ids else b"null"
        end = b',"prompt_token_ids":%b,"prompt_text":null}\n\n' % ids
        return http_chunk(self._head + role + self.usage(0) + end)

    def whole(self, metrics: dict[str, float | None]) -> bytes:
        message = {"role": "assistant", "content": self._answer.text(), "refusal": None, "annotations": None}
        message |= {"audio": None, "function_call": None, "reasoning": None}
        choice = {"message": message, "logprobs": None, **self.ending(), "routed_experts": None}
        return self.envelope(choice, {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}, metrics)


class CompletionFormat(_OpenAIFormat):
    object_name = "text_completion"
    before_word = b'{"index":%d,"text":"'
    after_word = b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":'
    after_last_word = b'","logprobs":null,"finish_reason":"%b","stop_reason":%b,"prompt_token_ids":null,"token_ids":'
    usage_end = b"}"

    def after_token(self, number: int) -> bytes:
        ids = b'"prompt_token_ids":' + self._answer.prompt_ids
        return self.after_word if number > 1 else self.after_word.replace(b'"prompt_token_ids":null', ids)

    def whole(self, metrics: dict[str, float | None]) -> bytes:
        choice = {"text": self._answer.text(), "logprobs": None, **self.ending()}
        choice |= {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
        return self.envelope(choice, {}, metrics)
