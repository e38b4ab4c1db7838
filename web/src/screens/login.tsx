import { useSignal } from "@preact/signals";
import { asProblem, type Problem, send } from "../api/client";
import type { Me } from "../api/types";
import { loggedIn } from "../state";
import { Button, ProblemNotice, TextField } from "../ui/basics";

export function Login() {
  const name = useSignal("");
  const password = useSignal("");
  const problem = useSignal<Problem | null>(null);
  const busy = useSignal(false);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (busy.value) return;
    busy.value = true;
    problem.value = null;
    try {
      const who = await send<Me>("POST", "/login", { body: { name: name.value, password: password.value } });
      loggedIn(who.data);
    } catch (error) {
      problem.value = asProblem(error);
      password.value = "";
    } finally {
      busy.value = false;
    }
  };
  return (
    <form onSubmit={(event) => void submit(event)}>
      <TextField label="Name" autoComplete="username" required value={name.value} onInput={(value) => (name.value = value)} />
      <TextField
        label="Password"
        type="password"
        autoComplete="current-password"
        required
        value={password.value}
        onInput={(value) => (password.value = value)}
      />
      <ProblemNotice problem={problem.value} />
      <Button submit kind="primary" busy={busy.value}>
        Log in
      </Button>
    </form>
  );
}
