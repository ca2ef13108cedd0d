// Asks for the admin key.

import { useState } from "preact/hooks";

interface SignInProps {
  refusal: string | null;
  enter: (key: string) => void;
}

export function SignIn({ refusal, enter }: SignInProps) {
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const shown = problem ?? refusal;
  return (
    <main class="sign-in" id="main">
      <h1>Headway console</h1>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          const entered = key.trim();
          // What else there is in it could not be sent in a header.
          if (/^[\x21-\x7e]+$/.test(entered)) enter(entered);
          else setProblem("A key has letters, digits and signs of ASCII only, and no spaces.");
        }}
      >
        <label for="admin-key">Admin key</label>
        <input
          id="admin-key"
          type="password"
          autocomplete="off"
          spellcheck={false}
          required
          aria-describedby="admin-key-note"
          value={key}
          onInput={(event) => setKey(event.currentTarget.value)}
        />
        <button class="primary" type="submit">
          Look
        </button>
      </form>
      {shown && (
        <p class="is-problem" role="alert">
          {shown}
        </p>
      )}
      <p class="note" id="admin-key-note">
        A key whose hash is in <code>admin_key_hashes</code> of headway.toml. It is kept in this tab only, until the tab is
        closed, and sent to this gateway only.
      </p>
    </main>
  );
}
