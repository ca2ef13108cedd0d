"""`headway demo --scripted`: the same prompt at standard and at fast, raced side by side in the terminal.

The gateway and its HTTP API are the real ones; the engines are scripted, so no model is needed.

    stage.py     what the race runs on: two scripted replicas, the tiers on offer, other callers
    calls.py     one streamed call, as any client makes it
    state.py     what is measured
    drawing.py   state -> what the terminal shows
    loop.py      starts all of it, runs the rounds, ends all of it
"""
