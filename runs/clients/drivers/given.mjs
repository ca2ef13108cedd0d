// What the JavaScript drivers are given: the scenario, the prompt, where to call, and the tool of the loops.
export const [scenario, prompt] = process.argv.slice(2);
export const { HEADWAY_URL: url, HEADWAY_KEY: key, HEADWAY_MODEL: model } = process.env;
export const v1 = `${url}/v1`;
const degrees = { Paris: 21, Oslo: 12 };
const asked = [];

export function weather({ city }) {
  asked.push(city);
  return `${degrees[city]} degrees`;
}

// What the proof says, if it says the same in every place where the documentation shows it.
export function proof(tiers) {
  if (Object.values(tiers).some((tier) => tier !== "standard")) {
    throw new Error(`the proofs say ${JSON.stringify(tiers)}`);
  }
  return "proof: standard";
}

// Runs the scenario. A loop must have called the tool for both cities, in this order.
export async function drive(scenarios) {
  const answer = await scenarios[scenario]();
  if (scenario.startsWith("tool loop") && asked.join() !== Object.keys(degrees).join()) {
    throw new Error(`the tool was called for ${asked}`);
  }
  console.log(answer);
}
