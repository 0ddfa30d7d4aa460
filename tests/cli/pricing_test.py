"""What `serve` measures before it serves, and that there is a way round it (traps T23 and T24).

Only what it says is looked at: how long a step takes is the machine's affair.
"""

import support

TINY = "synth:tiny,format=bf16"
MEASURED = "measured: a step of 1, 2, 4, 8, 16 rows takes"


class Pricing(support.CommandTest):
    def said_at_start(self, *arguments, **environment):
        """What it told on stderr when it was ready; it was ready at all."""
        return self.served(TINY, "--memory-limit-gib", "4", *arguments, FLASHLANE_THREADS="2", **environment)[1]

    def test_steps_are_measured_before_anything_is_served(self):
        for context in ("209", "512"):
            said = self.said_at_start("--context", context)
            self.assertEqual(said.count(MEASURED), 1, said)

    def test_a_context_too_short_for_it_is_served_unpriced(self):
        for context in ("160", "208"):
            said = self.said_at_start("--context", context)
            self.assertNotIn(MEASURED, said)
            self.assertIn(f"drafts are not priced: it takes 209 positions and the context has {context}",
                          said)

    def test_one_switch_skips_it_all(self):
        for arguments, environment in (
                (["--unpriced"], {}), ([], {"FLASHLANE_UNPRICED": "1"}), (["--no-drafts"], {})):
            said = self.said_at_start("--context", "512", *arguments, **environment)
            self.assertNotIn("measured: a step", said)
            self.assertNotIn("priced: ", said)


if __name__ == "__main__":
    support.main()
