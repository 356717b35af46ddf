"""Every interface of the program, and the values that cross them.

A part of a kind is written by inheriting its class (`Env`, `Suite`, `Policy`, `Router`, `Trainer`,
`Method`, `Tracker`), which has defaults for all that is not required. Each optional ability is a
class that inherits the kind, and a part has it because its class inherits that: nothing is
recognised by a member's name. What must be known before the part is built, such as its container
image, is an attribute of the class.

    episodes       Env (Solves), Suite (HasReference, HasMilestones, HasChecklist, Synthesizes,
                   SynthesizesDomains, ActsTogether), Policy (RanksLabels, ShowsState,
                   HoldsModel), Router (RoutesTurns)
    training       Trainer (ContinuesAdapters, AssignsAdvantages, FineTunes), Method, Lab; of what
                   runs a trainer's episodes elsewhere: TakesBack; Tracker (TakesReport)

A class that inherits none of these is a guest (`declared.adopted`): it works with the required
members alone. Every part that is found by name (`settings.registry`) is built by its factory, whose
parameters are the part's settings; one annotated `RunContext` receives the facts of the run.
"""

from trace_bench.core.protocols.declared import (
    abilities,
    adopted,
    conversation,
    make_env,
    perform,
    performed,
)
from trace_bench.core.protocols.episodes import (
    ActsTogether,
    Env,
    HasChecklist,
    HasMilestones,
    HasReference,
    HoldsModel,
    Lender,
    Policy,
    Prompt,
    RanksLabels,
    Router,
    RoutesTurns,
    ShowsState,
    Solves,
    State,
    Suite,
    Synthesizes,
    SynthesizesDomains,
    TurnReply,
    TurnRequest,
    Typical,
)
from trace_bench.core.protocols.training import (
    Ask,
    AssignsAdvantages,
    ContinuesAdapters,
    FineTunes,
    Hear,
    Lab,
    Method,
    MethodPlan,
    Need,
    OnEpisode,
    Phase,
    PlannedRun,
    PlayElsewhere,
    RunContext,
    Source,
    TakesBack,
    TakesReport,
    Tracker,
    Trainer,
    TrainingJob,
    Workload,
    Yardstick,
)
