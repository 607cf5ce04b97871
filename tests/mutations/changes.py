"""Changes of formulas, rules and gates that a fast test must notice: where, old text, new text, and the tests that are run.

Each old text occurs once in its file; test_changes.py says so where it does not. A change of code that moves one takes the
entry along.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """tests: files below tests/, of which only fast tests are run."""

    file: str
    before: str
    after: str
    tests: tuple[str, ...]


CALL_FORMS = "model_ops/test_call_forms.py"
NUMBERS, FENCES = "model_ops/test_number_value.py", "model_ops/test_code_fences.py"
SUITES = "resources/composing/test_eval_suite.py"
TALKS = "model_ops/environments/test_episode_conversation.py"
SESSION_REQUESTS = "model_ops/environments/test_session_requests.py"
VARLEN, DRAFTS = "model_ops/models/test_varlen_attention.py", "model_ops/speculators/test_draft_attention.py"
DISPATCH = "model_ops/cuda/test_cuda_dispatch.py"
ACCEPTANCE, GATES = "model_ops/decoding/test_acceptance.py", "resources/releasing/test_gates.py"
WORTH = "resources/releasing/test_worth_of_a_release.py"
REWARD_LOSS, SCORED_PAIRS = "model_ops/test_reward_loss.py", "model_ops/test_scored_pairs.py"
PREFERENCE_LOSSES, PREFERENCE = "model_ops/test_preference_losses.py", "model_ops/test_preference.py"
PAIRS, PAIR_RULES = "resources/composing/test_preferences.py", "resources/composing/test_preference_rules.py"
POLICY_LOSSES, RFT = "model_ops/test_policy_losses.py", "model_ops/test_rft.py"
CANARY, DROPOUT = "model_ops/test_canary.py", "model_ops/test_dropout.py"
ENGINES = "model_ops/test_rollout_engines.py"
ASYNCHRONOUS = "model_ops/test_rft_asynchronous.py"
RFT_WATCH, RFT_SCHEDULES = "model_ops/test_rollout_watch.py", "model_ops/test_rft_schedules.py"
RESCORE, ROLLOUT_SECTION = "pipelines/asking/test_rescore_command.py", "resources/releasing/test_rollout_section.py"
EXAMPLE_PROMPTS = "resources/records/test_example_prompts.py"
REJECTION = "resources/composing/test_rejection_sampling.py"
ENDPOINT = "model_ops/answering/test_endpoint.py"
SANDBOX, OPENAI_GRADER = "model_ops/test_sandbox.py", "model_ops/graders/test_openai_grader.py"
STAND_INS, TWO_SIDES = "model_ops/test_stand_ins.py", "model_ops/tasks/two_sides.py"
STAGE_SECONDS = "pipelines/planning/test_stage_seconds.py"
RULES, PLAN = "resources/curating/test_row_rules.py", "model_ops/planning/test_plan_choice.py"
GRADERS, SAMPLED = "model_ops/graders/test_grader.py", "model_ops/test_sampled_pairs.py"
FUNCTIONS, FORMS = "model_ops/graders/test_functions.py", "model_ops/graders/test_completion_form.py"

CHANGES = {
    "a mail address in another case is another user": Change(
        "resources/digests/user_hash.py",
        "identifier).lower())",
        "identifier))",
        ("resources/erasing/test_forget_spellings.py",),
    ),
    "opaque user ids lose their case": Change(
        "resources/digests/user_hash.py",
        "        return identifier\n",
        "        return identifier.lower()\n",
        ("resources/erasing/test_forget_spellings.py",),
    ),
    "a lake accepts another hash key": Change(
        "resources/reading/erasures.py",
        "if there in (None, key_check()) or",
        "if there is not None or",
        ("resources/reading/test_lake_key.py",),
    ),
    "fields are ignored in formats without a logger's keys": Change(
        "sql/reading/extraction.sql",
        "where list_contains($fielded, batch.source) or $looks and (",
        "where $looks and (list_contains($fielded, batch.source) or",
        ("resources/records/test_fields_in_every_format.py",),
    ),
    "feedback stays when its giver is erased": Change(
        "sql/erasing/marked.sql",
        "when voter_hash in (select sha256 from asked where kind = 'user') then 'erased'",
        "when false then 'erased'",
        ("resources/erasing/test_forget_in_every_format.py",),
    ),
    "forget compares keys of a pair with a line's by their whole path": Change(
        "resources/erasing/raw_keys.py",
        "return path in paths or synonyms.inside_body(",
        "return path in paths and synonyms.inside_body(",
        ("resources/erasing/test_forget_joined_lines.py",),
    ),
    "a key of a joined line that fields names counts as unread": Change(
        "resources/records/synonyms.py",
        "return any(value_at(part, steps) == value for part in parts for steps in there)",
        "return False",
        ("resources/erasing/test_forget_joined_lines.py",),
    ),
    # the sandbox
    "an answer's object is compared with a plain value by its own methods": Change(
        TWO_SIDES, "if isinstance(other, Remote) else NotImplemented", "if True else NotImplemented", (SANDBOX,)
    ),
    "an answer may ask the tests for anything": Change(
        TWO_SIDES,
        "        if not self.gives_all:\n            if name ==",
        "        if False:\n            if name ==",
        (SANDBOX,),
    ),
    "built-in names come from the answer": Change(
        TWO_SIDES, 'wanted -= own | set(dir(builtins)) | {""}', 'wanted -= own | {""}', (SANDBOX,)
    ),
    "an operator of an answer gives a plain value for a plain value": Change(
        TWO_SIDES, "mixed = bool(plain) or any(each", "mixed = any(each", (STAND_INS,)
    ),
    "the difference of an answer's object and a number forgets the number": Change(
        TWO_SIDES, "            self.mixed.add(value._of[1])\n", "            pass\n", (STAND_INS,)
    ),
    "an answer's object meets sets": Change(
        TWO_SIDES, 'if name != "format" and not all(', "if False and not all(", (STAND_INS,)
    ),
    "an answer ends a loop of the tests": Change(TWO_SIDES, 'and asked != "next":', "and False:", (STAND_INS,)),
    "an answer gives names that nobody asked for": Change(
        TWO_SIDES, "for name in wanted & values.keys()}", "for name in values}", (STAND_INS,)
    ),
    "an answer's exit hides a failed assertion": Change(
        TWO_SIDES,
        '        Standing.__getattr__(self, "__exit__")(kind, None, None)',
        '        return Standing.__getattr__(self, "__exit__")(kind, None, None)',
        (STAND_INS,),
    ),
    "a named tuple has no names": Change(
        TWO_SIDES,
        "base = next((kind for kind in WITH_ATTRIBUTES if isinstance(value, kind)), None)",
        "base = None",
        (STAND_INS,),
    ),
    "a job's folder has no bound": Change(
        "model_ops/tasks/sandbox_root.py", "size={MOST_BYTES},nr_inodes={MOST_FILES},mode=777", "mode=777", (SANDBOX,)
    ),
    "a job finds what the last one left": Change(
        "model_ops/tasks/sandbox_root.py", "        os.unlink(file)", "        pass", (SANDBOX,)
    ),
    "a job makes any number of files": Change(
        "model_ops/tasks/sandbox_child.py", "creations <= MOST_CREATIONS", "True", (SANDBOX,)
    ),
    "shared libraries are not looked for": Change(
        "model_ops/tasks/sandbox_root.py", "                    ctypes.CDLL(str(name))", "                    pass", (SANDBOX,)
    ),
    "programs may fork": Change(
        "model_ops/tasks/sandbox_child.py", "(SET_BITS, 0, 1, CLONE_THREAD)", "(SET_BITS, 0, 0, CLONE_THREAD)", (SANDBOX,)
    ),
    # graders
    "F1 of common n-grams is half": Change(
        "model_ops/graders/openai_grader.py",
        "return 2 * common / (first + second)",
        "return common / (first + second)",
        (OPENAI_GRADER,),
    ),
    "short texts have no brevity penalty": Change(
        "model_ops/graders/openai_grader.py", "min(0.0, 1 - len(wanted) / len(own))", "0.0", (OPENAI_GRADER,)
    ),
    "names that a formula does not know are 0": Change(
        "model_ops/graders/openai_grader.py", "return values[name]", "return values.get(name, 0.0)", (OPENAI_GRADER,)
    ),
    "places of a ranking count twice": Change(
        "model_ops/graders/judge.py",
        "(last - 2 * place) / last / 2",
        "(last - 2 * place) / last",
        ("model_ops/graders/test_grader.py",),
    ),
    "less than includes its bound": Change(
        "model_ops/tasks/instructions.py",
        "else count < int(bound)",
        "else count <= int(bound)",
        ("model_ops/test_instructions.py",),
    ),
    # losses
    "divergence weighs the student's part by beta": Change(
        "model_ops/objectives/divergences.py",
        "+ (1 - beta) * student_part",
        "+ beta * student_part",
        ("model_ops/test_divergences.py",),
    ),
    "a student with another tokenizer learns the log's token ids": Change(
        "model_ops/operations/distill.py",
        "    return read_chats(dataset, own, settings)\n",
        "    return chats\n",
        ("model_ops/test_student_base.py",),
    ),
    "lk_lambda mixes the other way round": Change(
        "model_ops/speculators/losses/speculator_losses.py",
        "loss = weight * kl + (1 - weight) * (1 - alpha)",
        "loss = (1 - weight) * kl + weight * (1 - alpha)",
        ("model_ops/speculators/test_speculator_losses.py",),
    ),
    "a drafter's loss counts three positions more": Change(
        "model_ops/speculators/losses/training_loss.py",
        "heard * sum(batch.on_host[1]))}",
        "heard * (sum(batch.on_host[1]) + 3))}",
        ("model_ops/speculators/test_training_loss.py",),
    ),
    # servers that answer
    "a refused key is one bad reply": Change(
        "model_ops/answering/endpoint.py", "if reply.status in REFUSED:", "if False:", (ENDPOINT,)
    ),
    "a pause holds nobody back": Change("model_ops/answering/endpoint.py", "self.pace.hold(pause_s)", "pass", (ENDPOINT,)),
    "a killed evaluation pays again": Change(
        "model_ops/evaluation/own_answers.py", '{each}" not in log}', '{each}" not in ()}', ("model_ops/test_task_scores.py",)
    ),
    "an interval without width is unknown": Change(
        "model_ops/evaluation/scored_pairs.py", "or reach is None:", "or not reach:", (SCORED_PAIRS,)
    ),
    # chat
    "a paste is several messages": Change(
        "pipelines/asking/typed_messages.py",
        "while self._is_terminal and _is_readable():",
        "while False:",
        ("pipelines/asking/test_typed_messages.py",),
    ),
    "lines typed while an answer grows are one message": Change(
        "pipelines/asking/typed_messages.py",
        "if text and self._waiting and now_s - last_s < GAP_S:",
        "if text and self._waiting:",
        ("pipelines/asking/test_typed_messages.py",),
    ),
    "a path is a command": Change(
        "pipelines/asking/conversation.py",
        r're.fullmatch(r"/(\w*)(?:\s+(.*))?"',
        r're.fullmatch(r"/(\S*)(?:\s+(.*))?"',
        ("pipelines/asking/test_conversation.py",),
    ),
    # environments
    "what an environment says is learnt": Change(
        "model_ops/environments/conversation.py",
        "sampled=versions != NOT_SAMPLED,",
        "sampled=versions >= NOT_SAMPLED,",
        (TALKS,),
    ),
    "the end of a turn stands twice": Change(
        "model_ops/rendering/tokens.py",
        "return self._encode([mark + text])[0].ids[1:]",
        "return self._encode([mark + text])[0].ids",
        (TALKS,),
    ),
    "a rewritten history goes on as if it were kept": Change(
        "model_ops/environments/conversation.py",
        "if mark and text.startswith(self._text + answer):",
        "if mark and answer in text:",
        (TALKS,),
    ),
    "an environment that fails is graded": Change(
        "model_ops/environments/environment_rollouts.py",
        "Grade(problem=attempt.problem) if attempt.problem else",
        "Grade(0.0) if attempt.problem else",
        ("model_ops/environments/test_environment_rollouts.py",),
    ),
    "a request goes on from other messages": Change(
        "model_ops/environments/policy_sessions.py",
        "if goes_on and server_messages.as_read(talk.messages) == said[:before]:",
        "if goes_on:",
        ("model_ops/environments/test_agent_rollouts.py",),
    ),
    "an agent that a limit ends has failed": Change(
        "model_ops/environments/agent_rollouts.py",
        "if session.cut and (reply.problem or not talks):",
        "if session.cut and not talks:",
        ("model_ops/environments/test_agent_rollouts.py",),
    ),
    "a context that is too long is told without its code": Change(
        "model_ops/environments/policy_sessions.py",
        'code="context_length_exceeded"',
        "code=None",
        ("model_ops/environments/test_agent_rollouts.py",),
    ),
    "a field that nobody knows is answered": Change(
        "model_ops/environments/session_fields.py",
        '        raise SessionError(f"{name} {reason}"',
        '        SessionError(f"{name} {reason}"',
        (SESSION_REQUESTS,),
    ),
    "a reference to an item is left out": Change(
        "model_ops/environments/session_apis.py", "        return known[0]\n", "        return {}\n", (SESSION_REQUESTS,)
    ),
    "the assistant's begun turn is answered as if it were over": Change(
        "model_ops/environments/session_apis.py",
        '_refuse(messages[-1].get("role") == "assistant", field, text)',
        "_refuse(False, field, text)",
        (SESSION_REQUESTS,),
    ),
    "a request with another value for the chat template goes on": Change(
        "model_ops/environments/policy_sessions.py",
        '(row.tools, row.request, row.messages[-1]["role"]) == (asked.tools, asked.request, "assistant")',
        '(row.tools, row.messages[-1]["role"]) == (asked.tools, "assistant")',
        (SESSION_REQUESTS,),
    ),
    "tools that the model does not see are taken": Change(
        "model_ops/environments/policy_sessions.py",
        "if asked.tools and self._template",
        "if False and self._template",
        (SESSION_REQUESTS,),
    ),
    "a value that the chat template does not read is taken": Change(
        "model_ops/rendering/chat_template.py",
        "if name in RESERVED or name not in words]",
        "if name in RESERVED]",
        (SESSION_REQUESTS,),
    ),
    "instructions of an earlier response are carried over": Change(
        "model_ops/environments/session_server.py",
        'turn.talk.messages[bool(body.get("instructions")) :]',
        "turn.talk.messages",
        (SESSION_REQUESTS,),
    ),
    "a body in chunks has no bound": Change(
        "model_ops/environments/session_server.py",
        "if before + count > MOST_BYTES:",
        "if before > MOST_BYTES:",
        (SESSION_REQUESTS,),
    ),
    "the trailers of chunks are the next request": Change(
        "model_ops/environments/session_server.py",
        "            count += len(trailer)\n",
        "            break\n",
        (SESSION_REQUESTS,),
    ),
    "text that looks like a number becomes one": Change(
        "model_ops/tasks/call_forms.py", '    if "string" in kinds:\n        return text\n', "", (CALL_FORMS,)
    ),
    "a call without its end is read": Change(
        "model_ops/tasks/call_forms.py", "if any(each.strip() for each in beside):", "if False:", (CALL_FORMS,)
    ),
    "one of several calls that cannot be read is left out": Change(
        "model_ops/tasks/call_forms.py",
        "for call in group] if all(groups) else []",
        "for call in group] if any(groups) else []",
        (CALL_FORMS,),
    ),
    "None of Gemma's calls stays a word": Change(
        "model_ops/tasks/call_forms.py",
        'BARE_NONE.sub("null", BARE_KEY.sub(r\'\\1"\\2":\', part))',
        "BARE_KEY.sub(r'\\1\"\\2\":', part)",
        (CALL_FORMS,),
    ),
    "a verifier grades records": Change(
        "model_ops/graders/built_in.py", 'kind in ("judge", "record")', 'kind in ("judge",)', (GRADERS,)
    ),
    "parts of an attempt count as attempts": Change(
        "model_ops/reinforcement/advantages.py",
        "grades = [[of_group[place] for place in firsts]",
        "grades = [[of_group[place] for place in firsts[:1]] * len(firsts)",
        ("model_ops/test_rft_environments.py",),
    ),
    # asynchronous reinforcement fine-tuning
    "prompts are asked a step too early": Change(
        "model_ops/reinforcement/asynchronous_asker.py",
        "min(self._version + self.settings.max_staleness,",
        "min(self._version + self.settings.max_staleness + 1,",
        (ASYNCHRONOUS,),
    ),
    "a continued run forgets what waits for its first step": Change(
        "model_ops/reinforcement/asynchronous_asker.py",
        "if chunk.round >= number:",
        "if chunk.round > number:",
        (ASYNCHRONOUS,),
    ),
    "prompts that are being answered are asked again": Change(
        "model_ops/reinforcement/asynchronous_asker.py", "self.pool.see(prompt, [])", "pass", (ASYNCHRONOUS,)
    ),
    "an engine looks for weights between answers only": Change(
        "model_ops/answers/engine_child.py", "if self._exchange() and hasattr", "if False and hasattr", (ASYNCHRONOUS,)
    ),
    "the probe is read at temperature 1": Change(
        "model_ops/answers/engine_child.py",
        "(self.runner.logits(hidden[0, :-1]) / self.settings.temperature)",
        "self.runner.logits(hidden[0, :-1])",
        (ASYNCHRONOUS,),
    ),
    "a killed engine is asked for all answers again": Change(
        "model_ops/answers/engine_processes.py",
        "for place in range(len(prompts)) if place not in answers]",
        "for place in range(len(prompts))]",
        (ASYNCHRONOUS,),
    ),
    "other weights of an engine are only noted": Change(
        "model_ops/answers/engine_processes.py", "if self.exact and not self.gap", "if False and not self.gap", (ASYNCHRONOUS,)
    ),
    "stale answers are not corrected": Change(
        "model_ops/reinforcement/rft_settings.py", '("tis" if self.max_staleness else "none")', '"none"', (ASYNCHRONOUS,)
    ),
    "ages are counted from the step after": Change(
        "model_ops/reinforcement/rollout_batches.py",
        "each.step - rollout.versions",
        "each.step + 1 - rollout.versions",
        (ASYNCHRONOUS,),
    ),
    "a full disk leaves half a line": Change(
        "model_ops/answers/answer_log.py",
        "            os.ftruncate(self._file, end)\n",
        "",
        ("model_ops/answers/test_answer_log.py",),
    ),
    # reinforcement fine-tuning
    "the dry run holds one group of a step": Change(
        "model_ops/reinforcement/rollout_plan.py",
        "documents(self.settings.prompts_per_step, self.settings.answers)",
        "documents(1, self.settings.answers)",
        (RFT,),
    ),
    "the dry run of sampled pairs fills a micro-batch": Change(
        "model_ops/preferences/sampled_pairs.py",
        "min(self.micro_batch_tokens // len(document), most)",
        "self.micro_batch_tokens // len(document)",
        (SAMPLED,),
    ),
    "the dry run of sampled pairs forgets a short last round": Change(
        "model_ops/preferences/sampled_pairs.py", "(self._steps % every or every)", "every", (SAMPLED,)
    ),
    "each rollout of an attempt is its last": Change(
        "model_ops/answers/rollout_log.py", '"last": id(rollout) in last', '"last": True', (RFT,)
    ),
    "all rollouts of an attempt are in the pass rate": Change(
        "sql/reporting.sql", "where grade is not null and last\n", "where grade is not null\n", (ROLLOUT_SECTION,)
    ),
    "an old mean is of answers without a new grade": Change(
        "sql/reporting.sql", "coalesce(avg(old) filter (where new is not null), avg(old))", "avg(old)", (RESCORE,)
    ),
    "a function that its file lacks is found in the run": Change(
        "model_ops/files/local_paths.py", 'bound & {name, "*"}', "True", ("pipelines/graph/test_rft_stage.py",)
    ),
    "a policy's clip takes the better side": Change(
        "model_ops/reinforcement/policy_losses.py",
        "-torch.minimum(ratios * advantages,",
        "-torch.maximum(ratios * advantages,",
        (POLICY_LOSSES,),
    ),
    "cispo has a gradient through its ratio": Change(
        "model_ops/reinforcement/policy_losses.py",
        "-tokens.log_ratio.detach().exp().clamp(max=cap)",
        "-tokens.log_ratio.exp().clamp(max=cap)",
        (POLICY_LOSSES,),
    ),
    "dppo masks against the advantage": Change(
        "model_ops/reinforcement/policy_losses.py",
        "torch.where(tokens.advantages > 0, moved > clip_high, moved < -clip_low)",
        "torch.where(tokens.advantages < 0, moved > clip_high, moved < -clip_low)",
        (POLICY_LOSSES,),
    ),
    "gspo has no geometric mean": Change(
        "model_ops/reinforcement/policy_losses.py",
        "(tokens.corrected_sum / tokens.lengths).exp()",
        "tokens.corrected_sum.exp()",
        (POLICY_LOSSES,),
    ),
    "the distance from the start is not weighed by the ratio": Change(
        "model_ops/reinforcement/policy_losses.py",
        "tokens.log_ratio.detach().exp() * moved.square() / 2",
        "moved.square() / 2",
        (POLICY_LOSSES,),
    ),
    "leave one out counts the rollout itself": Change(
        "model_ops/reinforcement/advantages.py", "(count / (count - 1))", "1.0", (POLICY_LOSSES,)
    ),
    "a rollout without a grade counts as 0": Change(
        "model_ops/reinforcement/advantages.py",
        "np.nan if grade is None else grade",
        "0.0 if grade is None else grade",
        (POLICY_LOSSES,),
    ),
    "z-scores count rollouts instead of tokens": Change(
        "model_ops/reinforcement/advantages.py",
        "np.average(values[known], weights=weights[known])",
        "np.average(values[known])",
        (POLICY_LOSSES,),
    ),
    "a masked token stays in the denominator": Change(
        "model_ops/reinforcement/policy_loss.py", "batch.shares[labelled] * (weights > 0)", "batch.shares[labelled]", (RFT,)
    ),
    "the loss forgets the temperature": Change(
        "model_ops/reinforcement/policy_loss.py",
        "label_log_probs(model, batch, temperature=self.temperature)",
        "label_log_probs(model, batch)",
        (RFT,),
    ),
    "log-probabilities of the sampler are one token late": Change(
        "model_ops/reinforcement/rollout_batches.py", "np.roll(values, -1)", "np.roll(values, 0)", (RFT,)
    ),
    "a group's branches begin one token early": Change(
        "model_ops/reinforcement/rollout_batches.py", "Branch(len(prompt) - 1,", "Branch(len(prompt) - 2,", (RFT,)
    ),
    "dr_grpo divides by the rollout's own length": Change(
        "model_ops/reinforcement/rollout_groups.py", "settings.max_new_tokens / tokens)", "1.0)", (RFT,)
    ),
    "long answers are rewarded": Change(
        "model_ops/reinforcement/rollout_groups.py",
        "return rollout.grade.value - min(1.0,",
        "return rollout.grade.value + min(1.0,",
        (RFT,),
    ),
    "the canary is deaf": Change("model_ops/reinforcement/canary.py", "if not gap <= most:", "if not gap <= 1e9:", (CANARY,)),
    "outside float32 the first round may differ by half a nat": Change(
        "model_ops/reinforcement/canary.py", "= 0.25, 4, 0.02", "= 0.5, 4, 0.02", (CANARY,)
    ),
    "the canary forgets the noise of its first round": Change(
        "model_ops/reinforcement/canary.py", "            self.noise = gap", "            pass", (CANARY,)
    ),
    "a training that continues measures the noise anew": Change(
        "model_ops/reinforcement/rollout_plan.py", 'self._canary.compared.noise = state["noise"]', "pass", (ENGINES,)
    ),
    "log-probabilities of another temperature pass": Change(
        "model_ops/reinforcement/canary.py", "return float(slope) if", "return 0.0 if", (CANARY,)
    ),
    "tokens of another temperature pass": Change(
        "model_ops/reinforcement/canary.py", "return float(moved / variance) if", "return 0.0 if", (CANARY,)
    ),
    "a few rare tokens are another temperature": Change(
        "model_ops/reinforcement/canary.py", "(variance + reading.x.abs().max() * moved.abs() / 3)", "variance", (CANARY,)
    ),
    "the canary reads the answers to one prompt": Change(
        "model_ops/reinforcement/canary.py", "for place in zip_longest(*groups) for", "for place in groups for", (CANARY,)
    ),
    "answers that vLLM cut have ended": Change(
        "model_ops/answers/vllm_engine.py", "self._version, ended)", "self._version, True)", (ENGINES,)
    ),
    "an answer that a server stopped has ended": Change(
        "model_ops/answers/vllm_engine.py",
        'bool(tokens) and tokens[-1] in body["stop_token_ids"]',
        'reason == "stop"',
        (ENGINES,),
    ),
    "the distance from the start is rewarded": Change(
        "model_ops/reinforcement/policy_loss.py",
        "values + self.kl * weights * kl_penalty",
        "values - self.kl * weights * kl_penalty",
        (POLICY_LOSSES,),
    ),
    "weights of truncated importance sampling are not applied": Change(
        "model_ops/reinforcement/policy_loss.py", "values = weights * values", "pass", (POLICY_LOSSES,)
    ),
    "an outlier stays in the ratio of its rollout": Change(
        "model_ops/reinforcement/policy_losses.py",
        "logs if self.weights is None else torch.where",
        "logs if True else torch.where",
        (POLICY_LOSSES,),
    ),
    "a token's ratio is not cut in that of its rollout": Change(
        "model_ops/reinforcement/policy_losses.py", "logs + self.weights.log(), 0.0)", "logs, 0.0)", (POLICY_LOSSES,)
    ),
    "masked tokens count in the length of a rollout": Change(
        "model_ops/reinforcement/policy_losses.py", "ones if self.weights is None else", "ones if True else", (POLICY_LOSSES,)
    ),
    "rewards train with dropout": Change(
        "model_ops/operations/rft.py", 'with without_dropout(model, progress, "rft"):', "if True:", (DROPOUT,)
    ),
    "preferences train with dropout": Change(
        "model_ops/operations/preference.py", 'with without_dropout(model, progress, "preference"):', "if True:", (DROPOUT,)
    ),
    "reward models train with dropout": Change(
        "model_ops/operations/reward_model.py", 'with without_dropout(model, progress, "reward_model"):', "if True:", (DROPOUT,)
    ),
    "rates that a config keeps are left": Change(
        "model_ops/training/dropout.py", "(*modules, *configs.values())", "modules", (DROPOUT,)
    ),
    "a model without dropout is saved without it": Change(
        "model_ops/training/dropout.py", "values[name] = value", "pass", (DROPOUT,)
    ),
    "a server's cache of prompts outlives its weights": Change(
        "model_ops/answers/vllm_engine.py", '"cache_salt": f"{self._run}-{self._syncs}"', '"cache_salt": self._run', (ENGINES,)
    ),
    "a server samples at its own temperature": Change(
        "model_ops/answers/vllm_engine.py", '"temperature": self.settings.temperature,', '"temperature": 1.0,', (ENGINES,)
    ),
    "old adapters stay in the server": Change(
        "model_ops/answers/vllm_engine.py",
        "for server in self.servers if self._adapters else ():\n                server.unload_adapter(old)",
        "for server in ():\n                server.unload_adapter(old)",
        (ENGINES,),
    ),
    "verified drafts cost nothing": Change(
        "model_ops/decoding/decode_loop.py",
        "costs = self._round + rows * (drafts + 1)",
        "costs = self._round + rows",
        ("model_ops/decoding/test_draft_length.py",),
    ),
    "a drafter goes on where no draft was asked for": Change(
        "model_ops/decoding/decode_loop.py",
        "if self.drafts:\n            # a drafter's cache",
        "if drafts:\n            # a drafter's cache",
        ("model_ops/decoding/test_draft_length.py",),
    ),
    "likelihood is a mean over all tokens": Change(
        "model_ops/reinforcement/rollout_batches.py",
        "for each in learnt if each.passed)",
        "for each in learnt)",
        (RFT_SCHEDULES,),
    ),
    "the last step has the temperature of the first": Change(
        "model_ops/reinforcement/rft_settings.py",
        "self.temperature + place * (end - self.temperature)",
        "self.temperature",
        (RFT_SCHEDULES,),
    ),
    "a round's loss keeps the first temperature": Change(
        "model_ops/reinforcement/rollout_plan.py",
        "self._loss.temperature = self.asker.sampling(number).temperature",
        "pass",
        (RFT_SCHEDULES,),
    ),
    "an entropy of 0.05 is watched at 0.005": Change(
        "model_ops/reinforcement/rollout_watch.py", "LEAST_ENTROPY = 0.05", "LEAST_ENTROPY = 0.005", (RFT_WATCH,)
    ),
    "a continued run forgets its first entropy": Change(
        "model_ops/reinforcement/rollout_watch.py",
        'math.nan if state["first_entropy"] is None else state["first_entropy"]',
        "math.nan",
        (RFT_WATCH,),
    ),
    "shares of the variance forget the weights of parts": Change(
        "model_ops/reinforcement/rollout_watch.py",
        "settings.parts[name].weight * grade.parts[name]",
        "grade.parts[name]",
        (RFT_WATCH,),
    ),
    "a part rules whatever held-out answers do": Change(
        "model_ops/operations/rft.py", "and is_flat(before, after) else None", "else None", (RFT,)
    ),
    "answers that pass now count as failing": Change(
        "sql/reporting.sql", "new >= $passing and old < $passing", "new < $passing and old < $passing", (RESCORE,)
    ),
    "new grades are written over the old ones": Change(
        "model_ops/operations/rescore.py", '"old_grade": row["grade"],', '"old_grade": grade.value,', (RESCORE,)
    ),
    "packages take the texts of rollouts": Change(
        "resources/signing/release_signature.py",
        "{*BESIDE, *erased.PAGES, *erased.WITH_TEXT}",
        "{*BESIDE, *erased.PAGES}",
        (RESCORE,),
    ),
    "answers that nothing verifies are learnt": Change(
        "resources/composing/teachers/settings.py", '"drop" if self.kind == "verifier" else "keep"', '"keep"', (REJECTION,)
    ),
    "hard prompts count as easy": Change(
        "sql/reporting.sql", "when rate < 0.25 then", "when rate > 0.75 then", (ROLLOUT_SECTION,)
    ),
    "the best answers are the worst": Change(
        "sql/reporting.sql",
        "order by grade desc, step desc, answer) = 1",
        "order by grade, step desc, answer) = 1",
        (ROLLOUT_SECTION,),
    ),
    "solved prompts are asked as often as others": Change(
        "model_ops/reinforcement/prompt_pool.py", "SELDOM = 0.2", "SELDOM = 1.0", (RFT,)
    ),
    "prompts that teach nothing are not replaced": Change(
        "model_ops/reinforcement/round_asker.py", "else min(wanted - useful, most - asked)", "else 0", (RFT,)
    ),
    "the effective sample size forgets the spread of ratios": Change(
        "model_ops/reinforcement/policy_loss.py", "mine.sum().square() / mine", "mine.sum() * len(mine) / mine", (RFT,)
    ),
    "parts of a held-out attempt count as attempts": Change(
        "model_ops/reinforcement/held_out_rollouts.py",
        "attempts = [last_of_attempts(group) for group in groups]",
        "attempts = groups",
        ("model_ops/test_rft_environments.py",),
    ),
    "an agent's clock runs while the model answers": Change(
        "model_ops/environments/agent_rollouts.py",
        "fork.until_s = math.inf",
        "pass",
        ("model_ops/environments/test_agent_rollouts.py",),
    ),
    "an answer that lacks a part of another one has a grade": Change(
        "model_ops/graders/grade.py", "else replace(grade, value=None)", "else grade", (GRADERS,)
    ),
    "a part that fails on an answer applies to no other": Change(
        "model_ops/graders/grade.py", "if grade.value is not None or grade.problem}", "if grade.value is not None}", (GRADERS,)
    ),
    "None in a dict counts as 0": Change(
        "model_ops/graders/grade.py", "any(each[name] is None for name in numbers & each.keys())", "False", (FUNCTIONS,)
    ),
    "a function of TRL gets one answer at a time": Change(
        "model_ops/graders/functions.py", "[group.answers] if self.whole else", "[group.answers] if False else", (FUNCTIONS,)
    ),
    "async calls wait one after the other": Change(
        "model_ops/graders/functions.py", "if self._waits and not self._blocks:", "if False:", (FUNCTIONS,)
    ),
    "a call has the time of one answer": Change(
        "model_ops/graders/functions.py",
        'self.seconds * max(len(call["answers"]) for call in calls)',
        "self.seconds",
        (FUNCTIONS,),
    ),
    "a function goes on without what is not known": Change(
        "model_ops/graders/function_child.py",
        'return {"refused": UNKNOWN[0]} if UNKNOWN else reply',
        "return reply",
        (FUNCTIONS,),
    ),
    "answers share the values of a column": Change(
        "model_ops/graders/function_child.py",
        "{name: [copy.deepcopy(each) for _ in answers] for name",
        "{name: [each for _ in answers] for name",
        (FUNCTIONS,),
    ),
    "a column beside completions holds messages": Change(
        "model_ops/graders/completion_form.py", 'in ("zip", "zip_longest"):', "in ():", (FORMS,)
    ),
    "prompts do not show the form": Change(
        "model_ops/graders/completion_form.py", '{"completions", "prompts"}', '{"completions"}', (FORMS,)
    ),
    "held-out answers are of step 0": Change(
        "model_ops/reinforcement/held_out_rollouts.py", "self._engine.sync(self._steps_done())", "self._engine.sync(0)", (RFT,)
    ),
    "functions get no end token": Change(
        "model_ops/answers/graded_answers.py", "ids=tokens.tolist()", "ids=tokens[:-1].tolist()", (RFT,)
    ),
    "an epoch is one of steps": Change(
        "model_ops/training/settings.py", '"epoch": step * rows_per_step / rows', '"epoch": step / rows', (RFT,)
    ),
    "kept answers are of their oldest weights": Change(
        "model_ops/operations/rescore.py",
        '"global_step": max(row["version"] for',
        '"global_step": min(row["version"] for',
        (RESCORE,),
    ),
    "a check that raises says 0": Change(
        "model_ops/graders/built_in.py",
        'return Grade(problem=f"raised {type(error).__name__}")',
        "return Grade(0.0)",
        (GRADERS,),
    ),
    "a grader that fails late is judged by its early answers": Change(
        "model_ops/graders/grade.py", "deque[str](maxlen=NEWEST)", "deque[str]()", (GRADERS,)
    ),
    "a set of Python is an argument of a call": Change(
        "model_ops/tasks/answer_message.py",
        "except (TypeError, ValueError, RecursionError) as error:",
        "except (ValueError, RecursionError) as error:",
        ("model_ops/test_answer_message.py",),
    ),
    # reward model
    "a margin makes a pair easier": Change(
        "model_ops/preferences/reward_loss.py",
        "logsigmoid(chosen - rejected - margins)",
        "logsigmoid(chosen - rejected + margins)",
        (REWARD_LOSS,),
    ),
    "centring holds the difference of scores": Change(
        "model_ops/preferences/reward_loss.py",
        "centring * (chosen + rejected).square()",
        "centring * (chosen - rejected).square()",
        (REWARD_LOSS,),
    ),
    "a score is read one token early": Change(
        "model_ops/rewards/score_head.py",
        ".cumsum(0) - 1",
        ".cumsum(0) - 2",
        (REWARD_LOSS, "model_ops/rewards/test_reward_model.py"),
    ),
    "an answer may end with the padding": Change(
        "model_ops/rewards/score_head.py",
        "ends = {tokenizer.eos_token_id, *end_of_turn_ids(tokenizer)}",
        "ends = set[int | None]()",
        ("model_ops/rewards/test_reward_model.py",),
    ),
    "pairs of one session count as if they were apart": Change(
        "model_ops/evaluation/scored_pairs.py",
        "max(1.0, variance(moves(counts, sums)) / binomial)",
        "max(1.0, 0 * variance(moves(counts, sums)) / binomial)",
        (SCORED_PAIRS,),
    ),
    "the temperature multiplies": Change(
        "model_ops/evaluation/scored_pairs.py",
        "return 1 / math.sqrt(low * high)",
        "return math.sqrt(low * high)",
        (SCORED_PAIRS,),
    ),
    "one session counts as many": Change(
        "model_ops/evaluation/scored_pairs.py", "binomial > 0 and len(counts) > 1", "binomial > 0", (SCORED_PAIRS,)
    ),
    "a reward model's gate looks at the middle of the interval": Change(
        "model_ops/evaluation/scored_pairs.py", 'held["low"] < wanted', 'held["value"] < wanted', (SCORED_PAIRS,)
    ),
    "a reward model that missed its gate grades": Change(
        "model_ops/rewards/reward_record.py",
        "if not self.may_grade:",
        "if self.may_grade is None:",
        ("model_ops/rewards/test_reward_model.py",),
    ),
    # preferences
    "DPO adds the ratios": Change(
        "model_ops/preferences/preference_losses.py",
        "return -logsigmoid(beta * (chosen.ratio - rejected.ratio))",
        "return -logsigmoid(beta * (chosen.ratio + rejected.ratio))",
        (PREFERENCE_LOSSES,),
    ),
    "robust DPO divides by too much": Change(
        "model_ops/preferences/preference_losses.py", "/ (1 - 2 * wrong)", "/ (1 - wrong)", (PREFERENCE_LOSSES,)
    ),
    "KTO measures from below zero": Change(
        "model_ops/preferences/preference_losses.py",
        "beta * (answers.ratio - z0)",
        "beta * (answers.ratio + z0)",
        (PREFERENCE_LOSSES,),
    ),
    "KTO is measured from 0": Change(
        "model_ops/preferences/preference.py", '{"z0": batch.z0}, "bco"', '{"z0": 0.0}, "bco"', (PREFERENCE,)
    ),
    "z0 has the wrong sign": Change(
        "model_ops/preferences/mismatched_answers.py",
        "(-nll - mine.reference[labelled])",
        "(nll + mine.reference[labelled])",
        (PREFERENCE,),
    ),
    "BCO is not shifted": Change(
        "model_ops/preferences/preference.py", '{"shift": self.shift}}', '{"shift": 0.0}}', (PREFERENCE,)
    ),
    "BCO shifts by the last step alone": Change(
        "model_ops/preferences/preference.py", "(mean - self.shift) / self._steps", "mean - self.shift", (PREFERENCE,)
    ),
    "z0 may be below 0": Change(
        "model_ops/preferences/mismatched_answers.py",
        "return max(0.0, total / count) if count else 0.0",
        "return total / count if count else 0.0",
        (PREFERENCE,),
    ),
    "the reference leaves out the end of a pass": Change(
        "model_ops/preferences/preference_batches.py",
        "math.ceil(len(self.rows) / self.rows_per_step)",
        "len(self.rows) // self.rows_per_step",
        (PREFERENCE,),
    ),
    "z0 may be that of a prompt's own answers": Change(
        "model_ops/preferences/mismatched_answers.py",
        "if not np.array_equal(prompts[place], prompt)",
        "if place != row",
        (PREFERENCE,),
    ),
    "bco shifts by the rewards of another loss": Change(
        "model_ops/preferences/preference.py", "self._of_shift * (numbers", "(numbers", (PREFERENCE,)
    ),
    "a label that two processes read counts twice": Change(
        "model_ops/preferences/reference_log_probs.py", "readers.clamp(min=1)", "readers.clamp(max=1)", (PREFERENCE,)
    ),
    "a doubtful label is taken for a sure one": Change(
        "model_ops/preferences/preference.py", "1 - batch.confidence[chosen]", "batch.confidence[chosen]", (PREFERENCE,)
    ),
    "the last token that both answers share is no target of the rejected one": Change(
        "model_ops/preferences/preference_documents.py",
        "rejected[at + 1 : trunk] = False",
        "rejected[at:trunk] = False",
        ("model_ops/test_preference_documents.py", PREFERENCE),
    ),
    "the reference's log-probabilities have the wrong sign": Change(
        "model_ops/preferences/reference_log_probs.py",
        "torch.stack([-nll, torch.ones_like(nll)])",
        "torch.stack([nll, torch.ones_like(nll)])",
        (PREFERENCE,),
    ),
    "a row's gradient is not scaled by its coefficient": Change(
        "model_ops/losses/head.py", "unit.mul_(upstream[:, None])", "unit", ("model_ops/training/test_linear_cross_entropy.py",)
    ),
    # preferences
    "a user votes for every pair of a prompt": Change(
        "sql/composing/preference_rules.sql",
        "partition by vote.voter, rendered order by",
        "partition by vote.voter, rendered, row_id order by",
        (PAIRS,),
    ),
    "the first vote on a text counts": Change(
        "sql/composing/preferences.sql",
        "rendered, said, voter order by ts desc, interaction_id desc) = 1",
        "rendered, said, voter order by ts, interaction_id) = 1",
        (PAIRS,),
    ),
    "a rare key's vote weighs without a bound": Change(
        "sql/composing/preferences.sql", "least($propensity_clip, 1 / kept_share)", "1 / kept_share", (PAIRS,)
    ),
    "a correction takes the verdict on the answer that it replaces": Change(
        "sql/composing/preferences.sql",
        "coalesce(replaced, completion)) as conversation",
        "completion) as conversation",
        (PAIRS,),
    ),
    "an answer that a person corrected is wanted because somebody liked it": Change(
        "sql/composing/preferences.sql", "least(value, -1), value", "value, value", (PAIRS,)
    ),
    "a copy of a corrected answer is learnt": Change(
        "sql/curating/curate.sql",
        "where not thumbs_down and not was_corrected and",
        "where not thumbs_down and",
        ("resources/curating/test_curate.py",),
    ),
    "what people sent as an edit counts as a placeholder": Change(
        "sql/composing/preference_rules.sql",
        "when is_repeated and chosen_said in",
        "when reason = 'edited' and chosen_said in",
        (PAIRS,),
    ),
    "a correction is learnt with the reasoning of the answer that it replaces": Change(
        "sql/curating/clean.sql",
        "case when is_corrected is distinct from true then reasoning end as reasoning",
        "reasoning as reasoning",
        ("resources/curating/test_clean.py",),
    ),
    "the oldest correction of an answer counts": Change(
        "sql/curating/clean.sql",
        "arg_max(comment, (ts, source_uri, source_row)) as correction",
        "arg_min(comment, (ts, source_uri, source_row)) as correction",
        ("resources/curating/test_clean.py",),
    ),
    "a context beside a conversation is lost": Change(
        "resources/records/example_prompts.py", "if others and messages:", "if False:", (EXAMPLE_PROMPTS,)
    ),
    "choices are lost": Change(
        "resources/records/example_prompts.py", "if choices is not None:", "if False:", (EXAMPLE_PROMPTS,)
    ),
    "a history is lost": Change(
        "resources/records/example_prompts.py", "messages = [*before, *turns]", "messages = [*turns]", (EXAMPLE_PROMPTS,)
    ),
    "answers of equal scores are a pair": Change(
        "sql/reading/message_macros.sql",
        "when each.chosen = each.rejected or each.status = 'tie'",
        "when false",
        (EXAMPLE_PROMPTS,),
    ),
    "an edit of any program's words is a correction": Change(
        "resources/records/edits.py",
        'if "original" in sides and "perhaps" in sides',
        'if "perhaps" in sides and sides.setdefault("original", "") is not None',
        ("resources/records/test_edits.py",),
    ),
    "an edit with an unknown id is not tied by what was said": Change(
        "sql/reading/ties.sql",
        "ties.tie in ('several', 'unknown') and texts",
        "ties.tie = 'several' and texts",
        ("resources/records/test_edits.py",),
    ),
    "an empty correction is an edit": Change(
        "sql/reading/feedback.sql",
        "when label = 'corrected' and nullif(trim(comment), '') is null then 'missing_field'",
        "when false then 'missing_field'",
        ("resources/records/test_edits.py",),
    ),
    "an outcome counts whole for each answer": Change(
        "sql/composing/preferences.sql", "1 / count(*) over (partition by kind, session_id)", "1", (PAIRS,)
    ),
    "a margin is twice as wide": Change(
        "sql/composing/preferences.sql", "avg(difference) / greatest(2,", "avg(difference) / greatest(1,", (PAIR_RULES,)
    ),
    "a pair is in the less protected split": Change(
        "sql/composing/preference_rows.sql", "least(better.place, worse.place)", "greatest(better.place, worse.place)", (PAIRS,)
    ),
    "a held-out pair names sessions of training": Change(
        "sql/composing/preference_rows.sql",
        "list_filter(behind, lambda each: each.place = placed.place), lambda each: each.interaction_id\n    )))",
        "list_filter(behind, lambda each: true), lambda each: each.interaction_id\n    )))",
        ("resources/composing/test_preference_lake.py",),
    ),
    "a number with decimals adds length to one without": Change(
        "sql/composing/preference_rules.sql", "|[.,:/-]\\p{N})')", "|[:/-]\\p{N})')", (PAIR_RULES,)
    ),
    "an edit's evaluation item is learnt": Change(
        "sql/composing/preference_rules.sql", "(reason = 'edited' or origin = 'teacher')", "origin = 'teacher'", (PAIRS,)
    ),
    "preferences are learnt whatever the recipe says": Change(
        "resources/deciding/options.py",
        "if not settings.preference_on_feedback:",
        "if settings.preference_on_feedback is None:",
        ("resources/deciding/test_options.py",),
    ),
    "a refusal is right for harmless requests": Change(
        "model_ops/tasks/text_match.py",
        'item.kind == "refuses"',
        'item.kind == "complies"',
        ("model_ops/test_task_scorers.py",),
    ),
    # what a run is worth
    "a gate of an interval holds with half of the pairs": Change(
        "pipelines/checks/worth.py",
        "math.ceil(RULE_OF_THREE / (1 - bound) - 1e-9)",
        "math.ceil(RULE_OF_THREE / (2 - bound) - 1e-9)",
        ("pipelines/checks/test_worth.py",),
    ),
    "rows of a part are those of the whole": Change(
        "resources/inspecting/rehearsal.py",
        "{split: round(count / share) for split, count in sft.rows.items()}",
        "{split: round(count) for split, count in sft.rows.items()}",
        ("pipelines/checks/test_worth.py",),
    ),
    # packing
    "small data gets the large steps of much data": Change(
        "model_ops/training/settings.py",
        "min(filled(self.tokens_per_step), floor, max(tokens, longest))",
        "min(self.tokens_per_step, max(tokens, longest))",
        ("model_ops/training/test_settings.py",),
    ),
    "small data gets the preset's passes": Change(
        "model_ops/training/settings.py",
        "max(self.epochs or 0, min(self.most_epochs or 0, self.LEAST_STEPS * per_step / max(1, total)))",
        "self.epochs or 0",
        ("model_ops/training/test_settings.py",),
    ),
    "a step of rows that are not full holds too few tokens": Change(
        "model_ops/documents/packing.py",
        "round(tokens_per_step / max(1.0, a_row))",
        "round(settings.tokens_per_step / capacity)",
        ("model_ops/training/test_packing.py",),
    ),
    "the first label of a document is the token itself": Change(
        "model_ops/documents/documents.py",
        "np.where(document.targets[1:], document.input_ids[1:], IGNORED)",
        "np.where(document.targets[1:], document.input_ids[:-1], IGNORED)",
        ("model_ops/training/test_packing.py",),
    ),
    "positions go on over the end of a document": Change(
        "model_ops/documents/documents.py",
        "np.concatenate([np.arange(at, at + length) for at, length in segments])",
        "np.arange(len(input_ids))",
        ("model_ops/training/test_packing.py",),
    ),
    # attention on CUDA
    "CUDA's window is one position wider": Change(
        "model_ops/tensors/varlen_kernel.py",
        "return -1 if window is None else window - 1",
        "return -1 if window is None else window",
        (DISPATCH,),
    ),
    "CUDA's softmax scale is a tenth higher": Change(
        "model_ops/tensors/varlen_kernel.py", "False,\n        scale=scale,", "False,\n        scale=1.1 * scale,", (DISPATCH,)
    ),
    "CUDA's gradients take another scale": Change(
        "model_ops/tensors/varlen_kernel.py",
        "unused,\n        scale=scale,",
        "unused,\n        scale=1.1 * scale,",
        (DISPATCH,),
    ),
    "a drafter's scale on CUDA is d to the -0.4": Change(
        "model_ops/speculators/backbone/draft_attention.py",
        "varlen_forward(query, keys, values, _boundaries(layout), query.shape[-1] ** -0.5)",
        "varlen_forward(query, keys, values, _boundaries(layout), query.shape[-1] ** -0.4)",
        (DISPATCH,),
    ),
    "CUDA's window sees the next position": Change(
        "model_ops/tensors/varlen_kernel.py",
        "window_size_right=0,\n    )\n    return output, normaliser",
        "window_size_right=1,\n    )\n    return output, normaliser",
        (VARLEN, DISPATCH),
    ),
    "CUDA's gradients see beyond a window": Change(
        "model_ops/tensors/varlen_kernel.py",
        "window is None,\n        random_state,",
        "True,\n        random_state,",
        (DISPATCH,),
    ),
    "a drafter's documents end where their queries do": Change(
        "model_ops/speculators/backbone/draft_attention.py",
        "Boundaries.of_starts(layout.query_starts, layout.key_starts, layout.device)",
        "Boundaries.of_starts(layout.query_starts, layout.query_starts, layout.device)",
        (DRAFTS, DISPATCH),
    ),
    "codes outlive an update": Change(
        "model_ops/quantization/straight_through.py",
        "register_optimizer_step_post_hook(lambda *_: begin(True))",
        "register_optimizer_step_post_hook(lambda *_: None)",
        ("model_ops/quantization/test_shared_codes.py",),
    ),
    "memory is pinned beyond the copies' share": Change(
        "model_ops/training/shards.py",
        "if sum(sizes) + size > host_bytes:",
        "if size > host_bytes:",
        ("model_ops/training/test_pinned_memory.py",),
    ),
    "FP8 products leave out the scales of the weight": Change(
        "model_ops/quantization/fp8_linear.py",
        "right_scale.float().t().contiguous()",
        "torch.ones_like(right_scale).t().contiguous()",
        (DISPATCH,),
    ),
    "a graph is kept over tensors that moved": Change(
        "model_ops/decoding/ragged_cache.py",
        "            self.graphs.clear()\n",
        "",
        ("model_ops/cuda/test_graphed_decoding.py",),
    ),
    "copied drafts stay on the CPU": Change(
        "model_ops/drafting/lookup.py", "Proposal(tokens.to(self.device), ", "Proposal(tokens, ", (DISPATCH,)
    ),
    # LoRA, quantization
    "rsLoRA divides by the rank": Change(
        "model_ops/adapters/lora_settings.py",
        "math.sqrt(self.rank) if self.rslora else self.rank",
        "self.rank",
        ("model_ops/models/test_lora.py",),
    ),
    "the adapter's update is not scaled when it is merged": Change(
        "model_ops/adapters/lora.py",
        "return self.scaling * (self.lora_B.float() @ self.lora_A.float())",
        "return self.lora_B.float() @ self.lora_A.float()",
        ("model_ops/models/test_lora.py",),
    ),
    "int8 codes reach 128": Change(
        "model_ops/quantization/int8_linear.py",
        "keepdim=True) / 127)",
        "keepdim=True) / 128)",
        ("model_ops/quantization/test_schemes.py",),
    ),
    "GPTQ spreads half of a column's error": Change(
        "model_ops/calibration/gptq_codes.py",
        "block[:, place + 1 :] -= error[:, None] * spread[place, place + 1 :]",
        "block[:, place + 1 :] -= 0.5 * error[:, None] * spread[place, place + 1 :]",
        ("model_ops/quantization/test_gptq.py",),
    ),
    # schedules
    "warm-up begins at rate 0": Change(
        "model_ops/training/schedules.py",
        "peak * (step + 1) / warmup",
        "settings.learning_rate * step / warmup",
        ("model_ops/training/test_schedules.py",),
    ),
    # acceptance, intervals
    "tau leaves out the token that the target adds": Change(
        "model_ops/drafting/acceptance.py",
        "return 1 + float(accepted) / float(forwards) if forwards else 1.0",
        "return float(accepted) / float(forwards) if forwards else 1.0",
        (ACCEPTANCE,),
    ),
    "intervals of acceptance cover 90 %": Change(
        "model_ops/drafting/acceptance.py", "[NORMAL_975, *T_975[::-1]]))", "[NORMAL_975, *T_975[::-1]])) * 0.84", (ACCEPTANCE,)
    ),
    "the seeds of a gain do not count": Change(
        "model_ops/drafting/acceptance.py", "        if len(side) > 1:\n", "        if len(side) > 9:\n", (ACCEPTANCE,)
    ),
    # gates
    "a gate holds at any end of its interval": Change(
        "resources/releases/gate_result.py",
        '{"value": self.measured, "low": self.low, "high": self.high}[self.judged_by]',
        "self.measured",
        (GATES,),
    ),
    "a gate holds on an interval that tells nothing": Change(
        "resources/releases/gate_result.py",
        "self.low < self.wanted - TELLS and",
        "self.low < self.wanted - 9 * TELLS and",
        (GATES,),
    ),
    "a training that did nothing gained on its base": Change(
        "resources/releasing/worth.py", "gain.low is not None and gain.low >= least", "gain.value > 0", (WORTH,)
    ),
    "a lower loss is no gain": Change(
        "resources/releasing/worth.py", "_shifted(loss, -1, 0.0)", "_shifted(loss, 1, 0.0)", (GATES, WORTH)
    ),
    "pairs show a gain of a model that did not move": Change(
        "resources/releasing/worth.py", "moved.value < LEAST_GAIN", "moved.value < 0", (WORTH,)
    ),
    "an answer is compared with no other one": Change(
        "model_ops/evaluation/reward_change.py", "own - fmean(others)", "own", ("model_ops/test_passed_answers.py",)
    ),
    "a gate whose bound is met exactly is missed": Change(
        "resources/releases/gate_result.py", "gate.judged >= gate.wanted if", "gate.judged > gate.wanted if", (GATES,)
    ),
    # values
    "the last digits of a fraction count": Change(
        "model_ops/tasks/number_value.py", 'elif each["under"]:', 'elif False and each["under"]:', (NUMBERS,)
    ),
    "a right answer may be any part of a text": Change(
        "model_ops/tasks/number_value.py",
        "return _whole(text) if part is None else part.value",
        "return _whole(text[-2:])",
        (NUMBERS,),
    ),
    "a date is a value": Change("model_ops/tasks/number_value.py", " or _DATE.search(plain)", "", (NUMBERS,)),
    "a minus negates a list": Change(
        "model_ops/tasks/number_value.py", "(times * each[0], *each[1:])", "tuple(times * n for n in each)", (NUMBERS,)
    ),
    "a comma without a blank joins": Change(
        "model_ops/tasks/number_spelling.py", "text = _TIGHT_LIST.sub(_separated, text)", "", (NUMBERS,)
    ),
    "a heading is an answer": Change(
        "model_ops/tasks/number_value.py", "if number is None or _NUMBERED.match(line):", "if number is None:", (NUMBERS,)
    ),
    "variables have no names": Change(
        "model_ops/tasks/number_value.py",
        "if not len(value.parts) == len(names)",
        "if True or not len(value.parts) == len(names)",
        (NUMBERS,),
    ),
    "any value is about another": Change(
        "model_ops/tasks/number_value.py", "* about.parts[0].denominator < 1:", "> 0:", (NUMBERS,)
    ),
    "a power takes any time": Change(
        "model_ops/tasks/number_value.py",
        "> 4 * MOST_DIGITS:\n        raise OverflowError",
        "> 10**4:\n        raise OverflowError",
        (NUMBERS,),
    ),
    "0.5 equals 0.5 %": Change(
        "model_ops/tasks/number_value.py", "(wanted.percent or not 0 < abs(plain) < 1)", "True", (NUMBERS,)
    ),
    "thousands are those of the other language": Change(
        "model_ops/tasks/number_value.py", '(separator == ".") == continental', '(separator == ",") == continental', (NUMBERS,)
    ),
    # fences
    "JSON ends at the first fence": Change(
        "model_ops/tasks/code_fences.py",
        "value, end = decoder.raw_decode(bare, place)",
        'value, end = decoder.raw_decode(bare.partition("`")[0], place)',
        (FENCES,),
    ),
    "code ends at the first fence": Change(
        "model_ops/tasks/code_fences.py", "return whole or flat or next", "return next", (FENCES,)
    ),
    "a mark in a string begins a call": Change(
        "model_ops/tasks/call_forms.py", "or _json_end(text, 0) == len(text) or bare_calls(text):", "or False:", (FENCES,)
    ),
    "a mark in a string ends a call": Change(
        "model_ops/tasks/call_forms.py",
        "closing = end.match(text, value_end) if end and value_end else None",
        "closing = None",
        (FENCES,),
    ),
    # tasks
    "what system says is left out": Change(
        "resources/composing/eval_prompts.py",
        "    if not system:\n        return messages\n",
        "    return messages\n",
        (SUITES,),
    ),
    # graders, sampled pairs
    "a grader that failed says 0": Change(
        "model_ops/graders/grade.py", "return Grade(None, parts, failed)", "return Grade(0.0, parts)", (GRADERS,)
    ),
    "a row with nothing to verify is wrong": Change(
        "model_ops/graders/built_in.py", "[Grade() if item is None else", "[Grade(0.0) if item is None else", (GRADERS,)
    ),
    "a grade may be no number": Change(
        "model_ops/graders/grade.py", "if not all(map(math.isfinite, parts.values())):", "if not parts:", (GRADERS,)
    ),
    "parts of a grade have no weight": Change(
        "model_ops/graders/grade.py", "settings.parts[name].weight * each", "each", (GRADERS,)
    ),
    "a judge that prefers a place goes on": Change(
        "model_ops/graders/judge.py", "most >= OF_A_PLACE *", "most > 2 *", (GRADERS,)
    ),
    "a cut answer is chosen": Change(
        "model_ops/preferences/sampled_rounds.py",
        "whole = [place for place in values if ended[place]]",
        "whole = list(values)",
        (SAMPLED,),
    ),
    "the second worst is rejected": Change(
        "model_ops/preferences/sampled_rounds.py",
        "min(values, key=values.__getitem__)",
        "sorted(values, key=values.__getitem__)[1]",
        (SAMPLED,),
    ),
    "a tie is learnt": Change(
        "model_ops/preferences/sampled_rounds.py", "<= least_difference else", "< least_difference else", (SAMPLED,)
    ),
    "the reference is the present model": Change(
        "model_ops/training/start_weights.py", "parameter.data, begin.data = begin.data, parameter.data", "pass", (SAMPLED,)
    ),
    "answers come without the adapter": Change(
        "model_ops/answers/in_process.py", "left.pop(name).copy_(weight)", "left.pop(name).copy_(own[name])", (RFT,)
    ),
    # curation, duplicates, personal data, ids
    "cut answers are kept": Change(
        "sql/curating/rules.sql", "finish_reason in ('length', 'max_tokens')", "finish_reason in ('max_tokens')", (RULES,)
    ),
    "near duplicates have to be a fifth more alike": Change(
        "resources/curating/word_kernels.py",
        "if counted < threshold * (counted + differ) or",
        "if counted < 1.2 * threshold * (counted + differ) or",
        ("resources/curating/test_near_duplicates.py",),
    ),
    "pieces of Chinese are single characters": Change(
        "sql/curating/macros.sql",
        "'\\p{Han}{2,}'), lambda run: grams_of(run, 2))",
        "'\\p{Han}{2,}'), lambda run: grams_of(run, 1))",
        ("resources/curating/test_clean.py",),
    ),
    "rated chats are requests a day": Change(
        "sql/deciding.sql",
        "count(*) filter (source is distinct from $chats) as traffic",
        "count(*) filter ($chats is not null) as traffic",
        ("resources/deciding/test_gather.py",),
    ),
    "a chat with a thumb is feedback": Change(
        "resources/records/formats.py",
        "return not any(wrapped_pair(",
        "return True or any(wrapped_pair(",
        ("resources/records/test_fields.py",),
    ),
    "more of everything is better": Change(
        "resources/records/polarity.py",
        "            side, kind = -1, bad",
        "            side, kind = 1, bad",
        ("resources/records/test_polarity.py",),
    ),
    "what undoes a bad thing is bad": Change(
        "resources/records/polarity.py",
        "if side == -1 and _is_undone(words):",
        "if False:",
        ("resources/records/test_polarity.py",),
    ),
    "a name that nobody knows is not said": Change(
        "resources/curating/row_feedback.py",
        'not is_known(each["name"] or "")',
        "False",
        ("resources/curating/test_graded_feedback.py",),
    ),
    "the class that an answer names is a verdict on it": Change(
        "sql/reading/extraction.sql",
        "and not coalesce(len(answer) <= 40 and contains(",
        "and not coalesce(false and contains(",
        ("resources/records/test_example_formats.py",),
    ),
    "an empty cell leaves the thumb": Change(
        "sql/curating/clean.sql",
        "and (name <> 'thumbs' or coalesce(",
        "and (true or coalesce(",
        ("resources/curating/test_graded_feedback.py",),
    ),
    "LangSmith's run without a trace is no request": Change(
        "sql/reading/formats/feedback.sql",
        "record.run_id is distinct from record.trace_id",
        "record.run_id <> record.trace_id",
        ("resources/records/test_langsmith_forms.py",),
    ),
    "the zero of 0 and 1 is neutral": Change(
        "resources/curating/row_feedback.py",
        '1.0 if name_counts["is_flag"] and end > 0 else None',
        "None",
        ("resources/curating/test_graded_feedback.py",),
    ),
    "a vote cannot be taken back": Change(
        "sql/curating/clean.sql",
        "where grade is not null or is_taken_back",
        "where grade is not null",
        ("resources/curating/test_graded_feedback.py",),
    ),
    "only a word is a label": Change(
        "resources/records/polarity.py",
        "        return number[1]",
        "        return None",
        ("resources/records/test_polarity.py", "resources/records/test_example_formats.py"),
    ),
    "a label that is read is listed as unread": Change(
        "resources/records/extraction.py",
        "if label_of(str(record.get(key))) is not None}",
        "if label_of(str(record.get(key))) is None}",
        ("resources/records/test_example_formats.py",),
    ),
    "feedback has its file's time": Change(
        "sql/reading/formats/feedback.sql",
        "record.created_at), guessed_time)",
        "record.created_at))",
        ("resources/records/test_formats.py",),
    ),
    "rated chats are held out": Change(
        "sql/composing/datasets.sql",
        "select split from assigned_splits where split <> 'train' and source is distinct from $chats",
        "select split from assigned_splits where false",
        ("resources/composing/test_splits.py",),
    ),
    "feedback of no workload is there for each": Change(
        "sql/catalog/lookups.sql",
        "where tie is distinct from 'elsewhere'",
        "where true",
        ("resources/records/test_formats.py",),
    ),
    "any long number is a card's": Change(
        "resources/curating/pii_patterns.py",
        "for value in doubled)) % 10 == 0",
        "for value in doubled)) % 10 >= 0",
        ("resources/curating/test_pii.py",),
    ),
    "the UI leaves out runs of the command line": Change(
        "pipelines/running/run.py",
        "remote_job_origin=origin_of(location_name(request.recipe), job)",
        "remote_job_origin=None",
        ("pipelines/running/test_follow.py",),
    ),
    "a killed run is said although a later one ended well": Change(
        "pipelines/status/lake_status.py",
        'each.status == "SUCCESS" and (each.ended_at or LONG_AGO) > began',
        'each.status == "SUCCESS" and (each.ended_at or LONG_AGO) < began',
        ("pipelines/status/test_status.py",),
    ),
    "reports of one step push its beginning out of the window": Change(
        "resources/launching/progress.py",
        "        if not self._reports or done > self._reports[-1][1]:\n",
        "        if True:\n",
        ("resources/launching/test_pace.py",),
    ),
    "answers with other spaces have another id": Change(
        "sql/reading/ties.sql", r"[\x09-\x0d\x1c-\x20\x{85}\p{Z}]+", r"\s+", ("resources/records/test_edits.py",)
    ),
    "messages beside a response are a prompt": Change(
        "resources/records/formats.py",
        "return not _answered_beside(record)",
        "return True",
        ("resources/records/test_example_formats.py",),
    ),
    "tests that import pytest grade 0": Change(
        "model_ops/tasks/unit_tests.py",
        "for name in _imported(each)} - sys.stdlib_module_names",
        "for name in _imported(each)} & sys.stdlib_module_names & set()",
        ("model_ops/test_task_scorers.py",),
    ),
    "records that do not fit a task are left out in silence": Change(
        "resources/composing/eval_suite.py", "        if misfits:\n", "        if not misfits and asked is None:\n", (SUITES,)
    ),
    "languages are shares of the known ones": Change(
        "sql/inspecting.sql",
        "where status = 'ok'\ngroup by language",
        "where status = 'ok' and language is not null\ngroup by language",
        ("resources/inspecting/test_inspection.py",),
    ),
    "a measure that misses its bound is shown as the bound": Change(
        "resources/inspecting/findings.py",
        "for digits in range(17)",
        "for digits in range(0)",
        ("resources/inspecting/test_inspection.py",),
    ),
    "records of other workloads are not counted": Change(
        "sql/curating/record_counts.sql",
        "where workload <> $workload and source_uri",
        "where workload = 'nobody' and source_uri",
        ("resources/catalog/test_catalog.py",),
    ),
    "no split is far from its share": Change(
        "resources/composing/datasets.py",
        "max(share, asked) > FAR_FROM_ASKED * min(share, asked)",
        "max(share, asked) > 100 * FAR_FROM_ASKED",
        ("resources/composing/test_datasets.py",),
    ),
    "ids leave out the choice of an answer": Change(
        "sql/reading/extraction.sql",
        "epoch_us(read_ts))),\n        choice_index\n",
        "epoch_us(read_ts)))\n",
        ("resources/records/test_formats.py", "laws/test_ingest_laws.py"),
    ),
    # drift, decisions, planner
    "the chart's bound is a nat and a half too high": Change(
        "resources/drifting/acceptance_chart.py",
        "    return high\n",
        "    return high + 1.5\n",
        ("resources/drifting/test_served_acceptance.py",),
    ),
    "a gain saves as much as it says": Change(
        "resources/deciding/options.py",
        "return decode_hours_a_day * gain / (1 + gain) if gain > -1",
        "return decode_hours_a_day * gain if gain > -1",
        ("resources/deciding/test_payback.py",),
    ),
    "a budget is a week's in half a week": Change(
        "resources/deciding/policy.py",
        "WEEK = timedelta(days=7)",
        "WEEK = timedelta(days=3.5)",
        ("resources/deciding/test_budget.py",),
    ),
    "devices reach half of their speed": Change(
        "model_ops/machine/device_rates.py", "COPY_SHARE = 0.71,", "COPY_SHARE = 0.355,", (PLAN,)
    ),
    "a plan leaves out the bytes between products": Change(
        "model_ops/planning/speed.py", " + needs.moved_bytes / rates.copy_tb_s", "", (PLAN,)
    ),
    "the heap of a CPU is taken to hold only what lives": Change(
        "model_ops/planning/memory_plan.py", "HEAP_FRAGMENTATION * blocks if", "0.0 if", (PLAN,)
    ),
    "answers that are sampled meanwhile take no memory": Change(
        "model_ops/planning/memory_plan.py", ", needs.sampling - saved - gradients)", ")", (PLAN,)
    ),
    "a forecast leaves out the trial of a micro-batch": Change(
        "pipelines/planning/stage_times.py", "tokens + micro_batch * settings.dry_run", "tokens", (STAGE_SECONDS,)
    ),
    "gptq is forecast without its columns": Change(
        "pipelines/planning/stage_times.py", "rates.exact_s + columns *", "rates.exact_s + 0 *", (STAGE_SECONDS,)
    ),
    "what a stage took is dropped where a later one failed": Change(
        "pipelines/checks/forecast.py",
        "if expected.file is not None and lines:",
        "if expected.file is not None and outcome.exit_code == 0:",
        ("pipelines/checks/test_check.py",),
    ),
    "the planner takes the kernels of a CPU for those of a device": Change(
        "model_ops/tensors/torch_internals.py",
        "return _stands_for[-1] if isinstance(tensor, FakeTensor)",
        'return "cpu" if isinstance(tensor, FakeTensor)',
        ("model_ops/planning/test_traced_attention.py",),
    ),
    "the planner's attention keeps nothing": Change(
        "model_ops/models/attention.py",
        "ctx.save_for_backward(query, key, value, output, normaliser, ",
        "ctx.save_for_backward(*(each.new_empty(0) for each in (query, key, value, output, normaliser)), ",
        ("model_ops/planning/test_traced_attention.py",),
    ),
    # preference training
    "a pair that did not move counts as right": Change(
        "model_ops/evaluation/preference_change.py",
        "0.5 + 0.5 * float(np.sign(gain))",
        "float(gain >= 0)",
        ("model_ops/test_preference_change.py",),
    ),
    "the rejected answer's gain is added": Change(
        "model_ops/evaluation/preference_change.py",
        "moved[name, CHOSEN] - moved[name, REJECTED]",
        "moved[name, CHOSEN] + moved[name, REJECTED]",
        ("model_ops/test_preference_change.py",),
    ),
    "held-out pairs of one session count as if they were apart": Change(
        "model_ops/evaluation/preference_change.py",
        "mean_and_reach(right, np.array(sessions))",
        "mean_and_reach(right, np.arange(len(sessions)))",
        ("model_ops/test_preference_change.py",),
    ),
    "answers may become much shorter": Change(
        "resources/releasing/gates.py",
        'gates.length_ratio and least, ratio, "least"',
        'gates.length_ratio, ratio, "most"',
        (GATES,),
    ),
    "the middle of the pairs' interval decides": Change(
        "resources/releasing/gates.py",
        'by_what.get("preference_accuracy"), "least", "low")',
        'by_what.get("preference_accuracy"), "least", "value")',
        (GATES,),
    ),
}
