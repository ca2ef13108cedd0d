"""The same prompt at standard and at fast, raced side by side in the terminal through a gateway on this event loop.

    stage.py     what a race runs on, as a value: the model, the seats, the curve, the prompt, the other callers
    scripted.py  `headway demo --scripted`: the stage with scripted engines, so that no model is needed
    calls.py     one streamed call, as any client makes it
    state.py     what is measured
    drawing.py   state -> what the terminal shows
    loop.py      runs the rounds on a stage, with the other callers beside them

`headway demo` runs the same race on real engines (local/demo/).
"""
