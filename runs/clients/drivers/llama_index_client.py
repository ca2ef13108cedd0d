"""LlamaIndex: its agent that calls functions, in streams."""

import asyncio

from given import KEY, MODEL, PROMPT, V1, drive, proof, weather
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

# Without the last two it asks for completions, and in plain text.
llm = OpenAILike(model=MODEL, api_base=V1, api_key=KEY, is_chat_model=True, is_function_calling_model=True)


async def tool_loop() -> str:
    return str(await FunctionAgent(tools=[weather], llm=llm).run(PROMPT))


def proofs() -> str:
    return proof({"whole": llm.chat([ChatMessage(role="user", content=PROMPT)]).raw.usage.headway["tier_served"]})


drive({"tool loop": lambda: asyncio.run(tool_loop()), "proof": proofs})
